// Measures models with ONNX Runtime Web: the protocol of measuring programs, version 1 (docs/targets.md).
// Arguments: the folder that holds node_modules, and the number of threads.
import { readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [packages, threads] = process.argv.slice(2);
const ort = await import(pathToFileURL(join(packages, "node_modules/onnxruntime-web/dist/ort.node.min.mjs")));
ort.env.wasm.numThreads = Number(threads);
ort.env.logLevel = "fatal";

const ARRAYS = {
  float32: Float32Array, float64: Float64Array, int8: Int8Array, uint8: Uint8Array, bool: Uint8Array,
  int16: Int16Array, uint16: Uint16Array, int32: Int32Array, uint32: Uint32Array,
  int64: BigInt64Array, uint64: BigUint64Array,
};
let built = null; // { model, session }

async function session(request) {
  if (built?.model !== request.model) {
    if (built) await built.session.release();
    built = null;
    const options = {
      executionProviders: ["wasm"], graphOptimizationLevel: "all", logSeverityLevel: 4,
      // WebAssembly sees no files: what lies beside the model is handed over with it
      externalData: (request.external ?? []).map((path) => ({ path, data: readFileSync(join(dirname(request.model), path)) })),
    };
    built = { model: request.model, session: await ort.InferenceSession.create(request.model, options) };
  }
  return built.session;
}

function tensors(inputs) {
  const feeds = {};
  for (const { name, dtype, shape, raw } of inputs) {
    const Kind = ARRAYS[dtype];
    if (!Kind) throw new Error(`input ${name} is ${dtype}, which ONNX Runtime Web does not take`);
    const bytes = readFileSync(raw);
    feeds[name] = new ort.Tensor(dtype, new Kind(new Uint8Array(bytes).buffer), shape);
  }
  return feeds;
}

const handlers = {
  describe: () => ({
    inlay: 1, gives: ["build", "latency", "outputs"], resident: true,
    facts: { "onnxruntime-web": ort.env.versions.web, node: process.version, threads, simd: "true" },
  }),
  build: async (request) => { await session(request); return {}; },
  time: async (request) => {
    const model = await session(request), feeds = tensors(request.inputs), latencies_ms = [];
    for (let i = 0; i < request.warm_up; i++) await model.run(feeds);
    for (let i = 0; i < request.readings; i++) {
      const begun = performance.now();
      await model.run(feeds);
      latencies_ms.push(performance.now() - begun);
    }
    return { latencies_ms };
  },
  run: async (request) => {
    const found = await (await session(request)).run(tensors(request.inputs)), outputs = [];
    for (const [number, [name, tensor]] of Object.entries(found).entries()) {
      const raw = `output-${number}.bin`, data = tensor.data;
      writeFileSync(join(request.folder, raw), new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
      outputs.push({ name, raw, dtype: tensor.type, shape: tensor.dims });
    }
    return { outputs };
  },
};

// WebAssembly hands on the address of an exception of C++, which says nothing
const said = (error) =>
  typeof error === "number" ? "it failed without a message" : String(error?.message ?? error).replace(/\s+/g, " ");

for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line);
  let answer;
  try {
    answer = await handlers[request.do](request);
  } catch (error) {
    answer = { error: said(error) || "it failed without a message" };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
process.exit(0);
