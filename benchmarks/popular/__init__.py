"""Popular models out of public packages, judged by their owners' own measures: the table ``popular``."""
