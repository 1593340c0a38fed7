"""The driver's functions by NVIDIA's own bindings: memory, streams, graphs, occupancy. Each program runs in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from test_cuda_core import ran

BINDINGS = """
from cuda.bindings import driver
def ok(result):
    assert result[0] == 0, result[0]
    return result[1] if len(result) == 2 else result[1:] or None
def refused(result, name):
    assert result[0].name == "CUDA_ERROR_" + name, result[0]
"""
SCALE = """
__device__ int total[2] = {1, 2};
extern "C" __global__ void scale(int* x, int n, int by) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] *= by; }
extern "C" __global__ void __launch_bounds__(128) bounded(int* x) { __shared__ int s[1024]; s[threadIdx.x] = x[threadIdx.x]; __syncthreads(); x[threadIdx.x] = s[127 - threadIdx.x]; }
extern "C" __global__ void __cluster_dims__(2, 1, 1) pairs(int* x) { x[blockIdx.x] = 1; }
extern "C" __global__ void race(int* x) { if (blockIdx.x < 2) x[0] = blockIdx.x; x[1 + blockIdx.x] = 7; }
"""


def check(text: str, tmp_path: Path, code: int = 0, **environment: str) -> list[dict[str, object]]:
    import textwrap

    done, records = ran(BINDINGS + textwrap.dedent(text), tmp_path, **environment)
    assert done.returncode == code, done.stderr
    return records


def test_copies_in_two_and_three_dimensions_and_memsets(tmp_path: Path) -> None:
    check(
        """
        pointer, pitch = ok(driver.cuMemAllocPitch(100, 8, 4))
        assert pitch == 512
        ok(driver.cuMemsetD2D8(pointer, pitch, 5, 100, 8))
        host = np.zeros((8, 100), np.uint8)
        p = driver.CUDA_MEMCPY2D()
        p.srcMemoryType, p.srcDevice, p.srcPitch = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE, pointer, pitch
        p.dstMemoryType, p.dstHost, p.dstPitch = driver.CUmemorytype.CU_MEMORYTYPE_HOST, host.ctypes.data, 100
        p.WidthInBytes, p.Height = 100, 8
        ok(driver.cuMemcpy2D(p))
        assert (host == 5).all()
        p.srcXInBytes = 500
        refused(driver.cuMemcpy2D(p), "INVALID_VALUE")
        ok(driver.cuMemsetD32(pointer, 0x01020304, 8))
        words = np.zeros(8, np.uint32)
        ok(driver.cuMemcpyDtoH(words.ctypes.data, pointer, 32))
        assert (words == 0x01020304).all()
        refused(driver.cuMemsetD32(int(pointer) + 1, 0, 1), "INVALID_VALUE")
        refused(driver.cuMemAlloc(1 << 50), "OUT_OF_MEMORY")
        attribute = driver.CUpointer_attribute
        kind = ok(driver.cuPointerGetAttribute(attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer))
        assert kind == driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
        assert [*map(int, ok(driver.cuMemGetAddressRange(int(pointer) + 70)))] == [int(pointer), 512 * 8]
        refused(driver.cuPointerGetAttribute(attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, host.ctypes.data), "INVALID_VALUE")
        ok(driver.cuMemFree(pointer))
        """,
        tmp_path,
    )


def test_memory_that_is_mapped_twice_is_one(tmp_path: Path) -> None:
    check(
        """
        prop = driver.CUmemAllocationProp()
        prop.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        prop.location.type, prop.location.id = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, 0
        size = ok(driver.cuMemGetAllocationGranularity(prop, driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM))
        handle = ok(driver.cuMemCreate(size, prop, 0))
        access = driver.CUmemAccessDesc()
        access.location, access.flags = prop.location, driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        places = [ok(driver.cuMemAddressReserve(size, 0, 0, 0)) for _ in range(2)]
        for place in places:
            ok(driver.cuMemMap(place, size, 0, handle, 0))
            ok(driver.cuMemSetAccess(place, size, [access], 1))
        ok(driver.cuMemsetD8(places[0], 9, size))
        host = np.zeros(size, np.uint8)
        ok(driver.cuMemcpyDtoH(host.ctypes.data, places[1], size))
        assert (host == 9).all()
        ok(driver.cuMemUnmap(places[0], size))
        ok(driver.cuMemAddressFree(places[0], size))
        """,
        tmp_path,
    )


def test_a_captured_graph_runs_again_and_again(tmp_path: Path) -> None:
    check(
        f"""
        f = driver.CUfunction(int(kernel("scale", {SCALE!r}).handle))
        pointer = ok(driver.cuMemAlloc(400)); ok(driver.cuMemsetD32(pointer, 1, 100)); ok(driver.cuCtxSynchronize())
        args = ((int(pointer), 100, 3), (__import__("ctypes").c_void_p, __import__("ctypes").c_int, __import__("ctypes").c_int))
        s, other = (ok(driver.cuStreamCreate(1)) for _ in range(2))
        event = ok(driver.cuEventCreate(0)); back = ok(driver.cuEventCreate(0))
        ok(driver.cuStreamBeginCapture(s, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
        refused(driver.cuStreamSynchronize(s), "STREAM_CAPTURE_UNSUPPORTED")
        refused(driver.cuStreamEndCapture(s), "STREAM_CAPTURE_INVALIDATED")
        ok(driver.cuStreamBeginCapture(s, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
        ok(driver.cuLaunchKernel(f, 1, 1, 1, 128, 1, 1, 0, s, args, 0))
        ok(driver.cuEventRecord(event, s)); ok(driver.cuStreamWaitEvent(other, event, 0))
        ok(driver.cuLaunchKernel(f, 1, 1, 1, 128, 1, 1, 0, other, args, 0))
        ok(driver.cuEventRecord(back, other)); ok(driver.cuStreamWaitEvent(s, back, 0))
        graph = ok(driver.cuStreamEndCapture(s))
        nodes, count = ok(driver.cuGraphGetNodes(graph))
        assert count == 2
        ready = ok(driver.cuGraphInstantiate(graph, 0))
        for _ in range(2): ok(driver.cuGraphLaunch(ready, s))
        ok(driver.cuStreamSynchronize(s))
        host = np.zeros(100, np.int32)
        ok(driver.cuMemcpyDtoH(host.ctypes.data, pointer, 400))
        assert (host == 81).all(), host
        """,
        tmp_path,
    )


def test_a_missing_event_between_streams_is_a_race(tmp_path: Path) -> None:
    records = check(
        f"""
        import ctypes
        f = driver.CUfunction(int(kernel("scale", {SCALE!r}).handle))
        pointer = ok(driver.cuMemAlloc(400)); ok(driver.cuMemsetD32(pointer, 1, 100)); ok(driver.cuCtxSynchronize())
        for _ in range(2):
            s = ok(driver.cuStreamCreate(1))
            ok(driver.cuLaunchKernel(f, 1, 1, 1, 128, 1, 1, 0, s, ((int(pointer), 100, 3), (ctypes.c_void_p, ctypes.c_int, ctypes.c_int)), 0))
        ok(driver.cuCtxSynchronize())
        """,
        tmp_path,
        102,
    )
    assert [one["kind"] for one in records if one["record"] == "fault"] == ["race"]


def test_a_race_is_told_and_the_launch_goes_on(tmp_path: Path) -> None:
    records = check(
        f"""
        import ctypes
        f = driver.CUfunction(int(kernel("race", {SCALE!r}).handle))
        pointer = ok(driver.cuMemAlloc(400)); ok(driver.cuMemsetD32(pointer, 0, 100))
        ok(driver.cuLaunchKernel(f, 99, 1, 1, 1, 1, 1, 0, 0, ((int(pointer),), (ctypes.c_void_p,)), 0))
        host = np.zeros(100, np.int32)
        ok(driver.cuMemcpyDtoH(host.ctypes.data, pointer, 400))
        assert (host[1:] == 7).all()
        """,
        tmp_path,
        102,
    )
    assert [one["kind"] for one in records if one["record"] == "fault"] == ["race"]


EXCHANGE = """
extern "C" __global__ void reset(int* x) { atomicExch(x + threadIdx.x, 7); }
extern "C" __global__ void swap(int* x, int* y) { y[threadIdx.x] = atomicExch(x + threadIdx.x, 7); }
"""


def test_an_exchange_whose_old_value_nobody_takes_reads_nothing(tmp_path: Path) -> None:
    text = """
        import ctypes
        x, y = ok(driver.cuMemAlloc(128)), ok(driver.cuMemAlloc(128))
        for name, values in NAMES:
            f = driver.CUfunction(int(kernel(name, TEXT).handle))
            ok(driver.cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, 0, ((int(x), int(y))[:values], (ctypes.c_void_p,) * values), 0))
            ok(driver.cuCtxSynchronize())
        """.replace("TEXT", repr(EXCHANGE))
    check(text.replace("NAMES", "[('reset', 1), ('swap', 2)]"), tmp_path)
    records = check(text.replace("NAMES", "[('swap', 2)]"), tmp_path, 101)
    assert [one["kind"] for one in records if one["record"] == "fault"] == ["unwritten"]


REDUCE = """
struct alignas(64) Map { char bytes[128]; };
extern "C" __global__ void least(const __grid_constant__ Map map, const int4* from)
{
    __shared__ alignas(128) int4 tile[1];
    tile[0] = *from;
    asm volatile("fence.proxy.async.shared::cta;");
    asm volatile("cp.reduce.async.bulk.tensor.1d.global.shared::cta.min.tile.bulk_group [%0, {%1}], [%2];" ::
                 "l"(&map), "r"(0), "r"(unsigned(__cvta_generic_to_shared(tile))) : "memory");
    asm volatile("cp.async.bulk.commit_group;");
    asm volatile("cp.async.bulk.wait_group 0;");
}
"""


def test_copies_through_a_tensor_map_reduce_elements_of_its_type(tmp_path: Path) -> None:
    check(
        f"""
        import ctypes
        f = driver.CUfunction(int(kernel("least", {REDUCE!r}).handle))
        T = driver.CUtensorMapDataType
        for kind, dtype in ((T.CU_TENSOR_MAP_DATA_TYPE_INT32, np.int32), (T.CU_TENSOR_MAP_DATA_TYPE_UINT32, np.uint32),
                            (T.CU_TENSOR_MAP_DATA_TYPE_FLOAT16, np.float16)):
            a, b = (np.resize(np.array(some, np.float32).astype(np.int32).astype(dtype), 16 // np.dtype(dtype).itemsize)
                    for some in ((-3, 2, 5, -1), (1, -7, 4, -2)))
            x, out = ok(driver.cuMemAlloc(16)), ok(driver.cuMemAlloc(16))
            ok(driver.cuMemcpyHtoD(x, a.ctypes.data, 16)); ok(driver.cuMemcpyHtoD(out, b.ctypes.data, 16))
            memory = ctypes.create_string_buffer(192)
            made = -(-ctypes.addressof(memory) // 64) * 64
            one = (ctypes.c_uint32 * 1)(1)
            assert ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled(
                ctypes.c_void_p(made), int(kind), 1, ctypes.c_void_p(int(out)), (ctypes.c_uint64 * 1)(len(a)), None,
                (ctypes.c_uint32 * 1)(len(a)), one, 0, 0, 0, 0) == 0
            pointer = ctypes.c_uint64(int(x))
            values = (ctypes.c_void_p * 2)(made, ctypes.addressof(pointer))
            ok(driver.cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, ctypes.addressof(values), 0))
            got = np.zeros_like(a)
            ok(driver.cuMemcpyDtoH(got.ctypes.data, out, 16))
            assert (got == np.minimum(a, b)).all(), (dtype, got)
        """,
        tmp_path,
    )


def test_a_callback_runs_while_the_host_waits_for_something_else(tmp_path: Path) -> None:
    check(
        """
        import threading
        event = threading.Event()
        calls = __import__("ctypes").CFUNCTYPE(None, __import__("ctypes").c_void_p)(lambda _: event.set())
        s = ok(driver.cuStreamCreate(1))
        ok(driver.cuLaunchHostFunc(s, driver.CUhostFn(_ptr=__import__("ctypes").addressof(calls)), 0))
        assert event.wait(10)
        """,
        tmp_path,
    )


def test_attributes_occupancy_and_variables(tmp_path: Path) -> None:
    check(
        f"""
        arch = "".join(map(str, device.compute_capability))
        image = Program({SCALE!r}, "c++", ProgramOptions(std="c++17", arch=f"sm_{{arch}}")).compile("cubin").code
        module = ok(driver.cuModuleLoadData(image))
        address, size = ok(driver.cuModuleGetGlobal(module, b"total"))
        host = np.zeros(2, np.int32)
        ok(driver.cuMemcpyDtoH(host.ctypes.data, address, size))
        assert size == 8 and list(host) == [1, 2]
        bounded = ok(driver.cuModuleGetFunction(module, b"bounded"))
        of = driver.CUfunction_attribute
        assert ok(driver.cuFuncGetAttribute(of.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, bounded)) == 4096
        assert ok(driver.cuFuncGetAttribute(of.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, bounded)) == 128
        pairs = ok(driver.cuModuleGetFunction(module, b"pairs"))
        assert ok(driver.cuFuncGetAttribute(of.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, pairs)) == 2
        assert ok(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(bounded, 128, 0)) == 16
        assert ok(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(bounded, 128, 40000)) == 5
        refused(driver.cuFuncSetAttribute(bounded, of.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1 << 20), "INVALID_VALUE")
        pointer = ok(driver.cuMemAlloc(400))
        import ctypes
        refused(driver.cuLaunchKernel(bounded, 1, 1, 1, 256, 1, 1, 0, 0, ((int(pointer),), (ctypes.c_void_p,)), 0), "INVALID_VALUE")
        refused(driver.cuLaunchKernel(pairs, 3, 1, 1, 32, 1, 1, 0, 0, ((int(pointer),), (ctypes.c_void_p,)), 0), "INVALID_CLUSTER_SIZE")
        """,
        tmp_path,
    )


TEXTURES = """
extern "C" __global__ void read(cudaTextureObject_t t, float* out) { out[threadIdx.x] = tex2D<float>(t, threadIdx.x + 1.0f, 1.5f); }
extern "C" __global__ void write(cudaSurfaceObject_t s) { surf2Dwrite(7.0f + threadIdx.x, s, int(threadIdx.x * 4), 0); }
"""


def test_textures_filter_and_surfaces_write_arrays(tmp_path: Path) -> None:
    check(
        f"""
        import ctypes
        d = driver.CUDA_ARRAY3D_DESCRIPTOR()
        d.Width, d.Height, d.Format, d.NumChannels = 8, 4, driver.CUarray_format.CU_AD_FORMAT_FLOAT, 1
        d.Flags = driver.CUDA_ARRAY3D_SURFACE_LDST
        array = ok(driver.cuArray3DCreate(d))
        host = np.arange(32, dtype=np.float32).reshape(4, 8)
        p = driver.CUDA_MEMCPY2D()
        p.srcMemoryType, p.srcHost, p.srcPitch = driver.CUmemorytype.CU_MEMORYTYPE_HOST, host.ctypes.data, 32
        p.dstMemoryType, p.dstArray, p.WidthInBytes, p.Height = driver.CUmemorytype.CU_MEMORYTYPE_ARRAY, array, 32, 4
        ok(driver.cuMemcpy2D(p))
        r = driver.CUDA_RESOURCE_DESC()
        r.resType, r.res.array.hArray = driver.CUresourcetype.CU_RESOURCE_TYPE_ARRAY, array
        t = driver.CUDA_TEXTURE_DESC()
        t.filterMode = driver.CUfilter_mode.CU_TR_FILTER_MODE_LINEAR
        texture = ok(driver.cuTexObjectCreate(r, t, None))
        out = ok(driver.cuMemAlloc(16))
        f = driver.CUfunction(int(kernel("read", {TEXTURES!r}).handle))
        ok(driver.cuLaunchKernel(f, 1, 1, 1, 4, 1, 1, 0, 0, ((int(texture), int(out)), (ctypes.c_uint64, ctypes.c_void_p)), 0))
        found = np.zeros(4, np.float32)
        ok(driver.cuMemcpyDtoH(found.ctypes.data, out, 16))
        assert list(found) == [8.5, 9.5, 10.5, 11.5], found
        surface = ok(driver.cuSurfObjectCreate(r))
        g = driver.CUfunction(int(kernel("write", {TEXTURES!r}).handle))
        ok(driver.cuLaunchKernel(g, 1, 1, 1, 8, 1, 1, 0, 0, ((int(surface),), (ctypes.c_uint64,)), 0))
        ok(driver.cuMemcpyAtoH(host.ctypes.data, array, 0, 32))
        assert list(host[0]) == [7 + i for i in range(8)], host
        """,
        tmp_path,
    )


def test_events_of_an_idle_stream_have_the_time_of_their_call_and_old_ptx_loads(tmp_path: Path) -> None:
    check(
        """
        import time
        first, last = ok(driver.cuEventCreate(0)), ok(driver.cuEventCreate(0))
        ok(driver.cuEventRecord(first, 0)); ok(driver.cuEventSynchronize(first))
        time.sleep(0.02)
        ok(driver.cuEventRecord(last, 0)); ok(driver.cuEventSynchronize(last))
        assert ok(driver.cuEventElapsedTime(first, last)) >= 20
        module = ok(driver.cuModuleLoadData(b".version 3.0\\n.target sm_20\\n.address_size 64\\n.visible .entry nothing() { ret; }\\0"))
        ok(driver.cuModuleGetFunction(module, b"nothing"))
        ok(driver.cuModuleLoadData(b".version 1.4\\n.target sm_10\\n.entry add() { .reg .f32 %f; mad.f32 %f, %f, %f, %f; exit; }\\0"))
        """,
        tmp_path,
    )


def test_another_driver_of_the_machine_is_not_found_under_its_other_name(tmp_path: Path) -> None:
    """Numba opens libcuda.so first; on a machine with a GPU that is NVIDIA's, and its folder may be on the path."""
    other = tmp_path / "libcuda.so.580.1"
    subprocess.run(["g++", "-shared", "-x", "c++", "/dev/null", "-o", other], check=True)
    (tmp_path / "libcuda.so").symlink_to(other.name)
    found = "import ctypes; print(all(hasattr(ctypes.CDLL(n), 'cuInit') for n in ('libcuda.so', 'libcuda.so.1')))"
    environment = dict(os.environ, LD_LIBRARY_PATH=str(tmp_path))
    run = [sys.executable, "-m", "gpuless", "run", sys.executable, "-c", found]
    assert subprocess.run(run, env=environment, capture_output=True, text=True, check=True).stdout == "True\n"
    late = f"import ctypes, gpuless; ctypes.CDLL({str(other)!r}); gpuless.use()"
    done = subprocess.run([sys.executable, "-c", late], capture_output=True, text=True, check=False)
    assert done.returncode and str(other) in done.stderr
