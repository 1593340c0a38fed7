"""libcuda.so.1: the driver's public interface over the machine."""
