"""What a rung is: CUDA, Python and library rungs behind one call, `Rung.prepare`."""

from rung.abstract_rung import Device, Empty, Prepared, Rung, device_facts, without_prose
from rung.cuda_rung import INCLUDE, CudaRung
from rung.library_rung import LibraryRung
from rung.python_rung import PythonRung

__all__ = (
    "INCLUDE",
    "CudaRung",
    "Device",
    "Empty",
    "LibraryRung",
    "Prepared",
    "PythonRung",
    "Rung",
    "device_facts",
    "without_prose",
)
