"""The emulator's own tests on a GPU: what they expect is what the hardware does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import emulation
import test_emulator_groups as groups
import test_emulator_numbers as numbers
import test_emulator_tensor_cores as tensor_cores
import test_emulator_threads as threads

SIXTEEN = numbers.SIXTEEN
TESTS: dict[str, Callable[[], None]] = {
    "places": threads.test_every_thread_knows_its_place,
    "tree": lambda: threads.test_tree_reduction_sums_in_every_order({}),
    "block reductions": threads.test_rung_cuh_reductions_over_a_block_repeated,
    "shuffles": lambda: threads.test_shuffles_read_the_lane_that_cuda_says("float", torch.float32),
    "shuffles of 8 bytes": lambda: threads.test_shuffles_read_the_lane_that_cuda_says("long long", torch.int64),
    "votes": threads.test_votes_and_reductions,
    "halves of a warp": threads.test_diverged_halves_of_a_warp_shuffle_apart,
    "odd blocks": threads.test_a_block_smaller_than_a_warp_and_one_that_is_no_multiple,
    "shared in templates": threads.test_static_shared_memory_in_functions_and_templates,
    "dynamic shared": threads.test_dynamic_shared_arrays_are_one_memory_under_several_names_and_types,
    "atomics": threads.test_atomics_count_exactly,
    "locals": threads.test_a_thousand_threads_of_a_warp_each_keep_their_stacks,
    "pairs": numbers.test_pairs_shuffles_and_atomics_of_sixteen_bits,
    "pack2": numbers.test_pack2_puts_the_first_number_low,
    "bits": numbers.test_bit_intrinsics,
    "integers": numbers.test_conversions_to_integers_round_and_clamp,
    "vectors": numbers.test_vectors_have_cudas_sizes_and_load_whole,
    "tf32 mma": tensor_cores.test_mma_m16n8k8_tf32_multiplies_rounded_operands,
    "to_tf32": tensor_cores.test_to_tf32_rounds_ties_away,
    "group copies": tensor_cores.test_copies_through_cooperative_groups_and_the_pipeline_primitives,
    "tiles": groups.test_a_tile_of_every_size_reduces_shuffles_and_votes,
    "scans": groups.test_coalesced_threads_and_scans,
    "grid": lambda: groups.test_grid_sync_keeps_each_blocks_shared_memory({}),
    "cluster": lambda: groups.test_a_cluster_reads_and_writes_its_neighbours_shared_memory({}),
}
for ctype, dtype in SIXTEEN:
    TESTS |= {
        f"rounding {ctype}": lambda c=ctype, d=dtype: numbers.convert_all(c, d),  # type: ignore[misc]
        f"arithmetic {ctype}": lambda c=ctype, d=dtype: numbers.test_sixteen_bit_arithmetic_rounds_once(c, d),  # type: ignore[misc]
        f"mma {ctype}": lambda c=ctype, d=dtype: tensor_cores.test_mma_m16n8k16_multiplies(c, d),  # type: ignore[misc]
        f"ldmatrix {ctype}": lambda c=ctype, d=dtype: tensor_cores.test_ldmatrix_hands_out_what_mma_takes(c, d),  # type: ignore[misc]
    }
WMMA = [*((shape, *kind) for shape in tensor_cores.TILES for kind in SIXTEEN), tensor_cores.TF32_TILE]


@pytest.mark.gpu
@pytest.mark.parametrize("name", TESTS)
def test_the_hardware_does_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulation, "ON_GPU", True)
    TESTS[name]()


@pytest.mark.gpu
@pytest.mark.parametrize("layouts", [("row_major", "col_major"), ("col_major", "row_major")])
@pytest.mark.parametrize("tile", WMMA)
def test_fragments_on_the_hardware(
    tile: tuple[tuple[int, int, int], str, torch.dtype], layouts: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulation, "ON_GPU", True)
    tensor_cores.test_wmma_multiplies(*layouts, *tile)
