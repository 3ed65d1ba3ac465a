"""ONNX rows."""
ONNX = {}
