"""Signatures of kernels are read from source text, whatever stands around them."""

import pytest

from gpuless.base.errors import UserError
from gpuless.compile.source import Parameter, included, kernel_parameters, kernels_in


def parameters(signature: str, kernel: str = "k") -> tuple[Parameter, ...]:
    return kernel_parameters(f"{signature} {{ }}", kernel, "file.cu")


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("const float* __restrict__ x", Parameter("float", "x", True, True)),
        ("float const *x", Parameter("float", "x", True, True)),
        ("float *const x", Parameter("float", "x", True, False)),
        ("volatile float4* x", Parameter("float4", "x", True, False)),
        ("const half2* RESTRICT x", Parameter("half2", "x", True, True)),
        ("float x[]", Parameter("float", "x", True, False)),
        ("const int x[4]", Parameter("int", "x", True, True)),
        ("float** x", Parameter("float*", "x", True, False)),
        ("unsigned long long n", Parameter("unsigned long long", "n", False, False)),
        ("long unsigned int n", Parameter("unsigned long", "n", False, False)),
        ("unsigned n", Parameter("unsigned int", "n", False, False)),
        ("short int n", Parameter("short", "n", False, False)),
        ("signed char c", Parameter("signed char", "c", False, False)),
        ("const int n = 3", Parameter("int", "n", False, True)),
        ("const __grid_constant__ CUtensorMap map", Parameter("CUtensorMap", "map", False, True, grid_constant=True)),
        ("struct Shape s", Parameter("Shape", "s", False, False)),
        ("ns::Pair<int, 4> p", Parameter("ns::Pair<int, 4>", "p", False, False)),
        ("Real scale = Real(f(1, 2))", Parameter("Real", "scale", False, False)),
    ],
)
def test_each_way_to_write_a_parameter(written: str, expected: Parameter) -> None:
    assert parameters(f"__global__ void k({written})") == (expected,)
    assert parameters(f"__global__ void k(int a, {written}, int b)")[1] == expected


@pytest.mark.parametrize(
    "front",
    [
        "__global__ void",
        'extern "C" __global__ void',
        'extern "C" __global__ __launch_bounds__(BLOCK, 2) void',
        "static __global__ void __launch_bounds__(THREADS(1, 2))",
        "void __global__",
        "__global__ __cluster_dims__(2, 1, 1) BOUNDS(64) void",
        "template <typename T, int N = 4> __global__ void",
        "__global__\nvoid\n",
    ],
)
def test_what_may_stand_in_front_of_a_kernel(front: str) -> None:
    assert [p.name for p in parameters(f"{front} k(float* out, int n)")] == ["out", "n"]


def test_comments_strings_directives_and_disabled_code_hold_no_kernels() -> None:
    source = r"""
    /*--- idea = "__global__ void a(int x) {}" ---*/
    #define KERNEL __global__ void b(int x) { \
        __global__ void c(int x) { }
    // __global__ void d(int x) { \
       __global__ void e(int x) { }
    const char* text = "\" __global__ void f(int x) { }";
    const char* raw = R"(" __global__ void g(int x) { })";
    const int million = 1'000'000;
    #if 0
    __global__ void h(int x) { }
    #else
    __global__ void i(int /* not y */ x /* , int z */) { }
    #endif
    __global__ void j(int x);
    __global__ void j(int x) { if (x < 1) __syncthreads(); }
    """
    assert kernels_in(source) == ("i", "j")
    assert kernel_parameters(source, "i", "file.cu") == (Parameter("int", "x", False, False),)


def test_a_kernel_without_parameters() -> None:
    assert parameters("__global__ void k()") == ()
    assert parameters("__global__ void k(void)") == ()


def test_an_instance_of_a_template_gives_its_types() -> None:
    template = "template <typename T, int N> __global__ void k(const T* x, T y, int n)"
    kinds = [p.ctype for p in parameters(template, "k<float, 256>")]
    assert kinds == ["float", "float", "int"]
    assert [p.ctype for p in parameters(template)] == ["T", "T", "int"]


def test_an_unknown_kernel_is_reported_with_those_that_exist() -> None:
    source = "__global__ void first(int x) { } __global__ void second(int x) { }"
    with pytest.raises(UserError, match=r"mine\.cu has no kernel named 'third': it defines first, second"):
        kernel_parameters(source, "third", "mine.cu")
    with pytest.raises(UserError, match="defines no __global__ function"):
        kernel_parameters("void host();", "k", "mine.cu")


@pytest.mark.parametrize("nameless", ["int", "float*", "unsigned long long", "const float* __restrict__"])
def test_a_parameter_without_a_name_cannot_be_bound(nameless: str) -> None:
    with pytest.raises(UserError, match=r"parameter 2 of kernel 'k' in file\.cu has no name"):
        parameters(f"__global__ void k(int a, {nameless})")


@pytest.mark.parametrize(
    "line",
    [
        "#include NAME",
        "# include /* a comment */ NAME",
        "/* before */ #include NAME",
        "#include_next <other.cuh>",
        "%:include NAME",
        "#inc\\\nlude NAME",
        "#import \"other.cuh\"",
    ],
)
def test_a_file_that_a_macro_names_is_refused(line: str) -> None:
    with pytest.raises(UserError, match="write #include with the file"):
        included(f'#define NAME "other.cuh"\n{line}\n')


def test_what_only_looks_like_an_include_is_none() -> None:
    text = '// #include NAME\n#include "rung.cuh"\n#if __has_include(<cuda.h>)\n#endif\nint include = 1;\n/* \n#include NAME\n*/'
    assert included(text) == ("rung.cuh",)
