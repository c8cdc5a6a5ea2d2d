// Filled by the engine.
