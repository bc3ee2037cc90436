"""Networks: tensors in, a feature map out, and the readouts that turn the map into an energy."""
