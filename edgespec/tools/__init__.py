"""Programs built on the engine: bench, replay, export, adapt, batches of prompts on a cluster."""
