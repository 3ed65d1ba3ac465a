"""nn: modules, parameters and the tracing that turns them into a graph; the layers and losses of models."""
