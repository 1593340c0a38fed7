// out = x * weight^T + bias by CUTLASS 3 for Hopper: TMA, warp-specialised wgmma, tiles and stages of its own choice.
#include <cutlass/cutlass.h>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/epilogue/fusion/operations.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/gemm/kernel/gemm_universal.hpp>
#include <cutlass/util/packed_stride.hpp>

using namespace cute;
using Real = FORMAT;
using Row = cutlass::layout::RowMajor;
using Column = cutlass::layout::ColumnMajor;
using Fused = cutlass::epilogue::fusion::LinCombPerColBias<Real, float, Real>;

constexpr int ALIGNMENT = 16 / sizeof(Real);
using BlockTile = Shape<_128, Int<COLUMNS>, Int<128 / sizeof(Real)>>;
using Cluster = Shape<_2, _1, _1>;

using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, BlockTile, Cluster, cutlass::epilogue::collective::EpilogueTileAuto,
    float, float, void, Row, ALIGNMENT, Real, Row, ALIGNMENT, SCHEDULE_EPILOGUE, Fused>::CollectiveOp;
using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Real, Row, ALIGNMENT, Real, Column, ALIGNMENT, float, BlockTile,
    Cluster, cutlass::gemm::collective::StageCountAutoCarveout<sizeof(typename Epilogue::SharedStorage)>,
    SCHEDULE>::CollectiveOp;
using Gemm = cutlass::gemm::device::GemmUniversalAdapter<
    cutlass::gemm::kernel::GemmUniversal<Shape<int, int, int, int>, Mainloop, Epilogue>>;

// 0, or CUTLASS's status. The device's number of multiprocessors is passed, since asking for it takes microseconds.
extern "C" int product(const void* x, const void* weight, const void* bias, void* out, int rows, int columns, int depth,
                       int multiprocessors, void* stream)
{
    cutlass::KernelHardwareInfo device;
    device.sm_count = multiprocessors;
    typename Gemm::Arguments given{
        cutlass::gemm::GemmUniversalMode::kGemm,
        {rows, columns, depth, 1},
        {static_cast<const Real*>(x), cutlass::make_cute_packed_stride(typename Gemm::GemmKernel::StrideA{}, {rows, depth, 1}),
         static_cast<const Real*>(weight),
         cutlass::make_cute_packed_stride(typename Gemm::GemmKernel::StrideB{}, {columns, depth, 1})},
        {{}, nullptr, {}, static_cast<Real*>(out),
         cutlass::make_cute_packed_stride(typename Gemm::GemmKernel::StrideD{}, {rows, columns, 1})},
        device};
    given.epilogue.thread.alpha = 1.0f;
    given.epilogue.thread.bias_ptr = static_cast<const Real*>(bias);
    Gemm gemm;
    if (auto status = gemm.can_implement(given); status != cutlass::Status::kSuccess) return int(status);
    if (auto status = gemm.initialize(given, nullptr, static_cast<cudaStream_t>(stream)); status != cutlass::Status::kSuccess)
        return int(status);
    return int(gemm.run(static_cast<cudaStream_t>(stream)));
}
