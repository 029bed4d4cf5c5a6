"""Tools around the product: the embedded cluster, images, the demo, real vLLM on CPU."""
