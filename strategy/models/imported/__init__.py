"""Programs of other frameworks: torch.export and ONNX files, read as data and translated op by op into ours."""
