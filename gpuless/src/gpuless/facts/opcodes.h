// What an opcode is: one row for each. The parts of the executor take their rows from here (machine/rows.h), and so
// does Python (opcodes.py): what stands in a column is known nowhere else. An opcode that begins with U and has no row
// of its own does on the uniform datapath what the row of the rest says.
//
// OP(name, handler, what reads its modifiers, whether its first operand is written, the modifiers that it may have (#
//    stands for a number), group in tables of instructions, unit, clocks for which the instruction of a warp occupies
//    the unit of its quarter of a multiprocessor (0: by its shape), registers of an operand)
// ACCESS(the same, how it accesses memory, which memory, which way)
// clang-format off
#ifndef ARITHMETIC_WORDS
#define ARITHMETIC_WORDS "FTZ SAT RM RP RZ RN"
#define COMPARISON_WORDS "F LT EQ LE GT NE GE NUM NAN LTU EQU LEU GTU NEU GEU T AND OR XOR FTZ BF BF16_V2 H0_AND H1_AND"
#define CONVERSION_WORDS "F16 F32 F64 BF16 TRUNC FLOOR CEIL RNI RN RZ RM RP FTZ SAT NTZ ROUND U64 S64 U32 " \
    "S32 U16 S16 U8 S8"
#define PAIR_WORDS "BF16_V2 BF16 F32 MMA RELU SAT FTZ H0_H0 H1_H1 NAN XORSIGN"
#define PRODUCT_WORDS "SP F32 F16 SAT BF16 TF32 E4M3 E5M2 S8 U8 #"
#define GROUP_WORDS "SP F32 F16 SAT BF16 TF32 E4M3 E5M2 S8 U8 #x#x#"
#define MATRIX_WORDS "16 M88 MT88 1 2 4"
#define ACCESS_WORDS "E 32 64 128 U8 S8 U16 S16 WEAK STRONG MMIO GPU SYS CTA SM VC NA EF EL LU LTC64B LTC128B LTC256B"
#define ATOMIC_WORDS "E 32 64 U32 S32 U64 S64 F32 F64 F32x2 F32x4 F16x2 F16x4 F16x8 BF16x2 BF16_V2 " \
    "BF16x4 BF16x8 ADD MIN MAX INC DEC AND OR XOR EXCH CAS CAST POPC ARRIVE SPIN STRONG GPU SYS CTA " \
    "SM FTZ RN EF EL LU NA"
#define SIGNAL_WORDS "32 64 128 U64 S64 S32 ADD MIN MAX INC DEC AND OR XOR"
#define MINIMUM_WORDS "U32 S32 U64 S64 S16x2 U16x2 RELU"
#define REDUCTION_WORDS "ADD MIN MAX INC DEC AND OR XOR S32 U32 U64 S64 64 F16 BF16 F32 F64 RN FTZ"
#define SURFACE_WORDS "D BA 1D 2D 3D 1D_ARRAY 2D_ARRAY 64 128 U8 S8 U16 S16 STRONG WEAK SM CTA GPU SYS TRAP IGN"
#endif

#ifdef OF_FLOATS
OP(FFMA, ffma, prepare_arithmetic, true, ARITHMETIC_WORDS, "FFMA", FMA, 1, WORD)
OP(FMUL, fmul, prepare_fmul, true, ARITHMETIC_WORDS " D2 D4 D8 M2 M4 M8", "fp32", FMA, 1, WORD)
OP(FADD, fadd, prepare_arithmetic, true, ARITHMETIC_WORDS, "fp32", FMA, 1, WORD)
OP(FMNMX, fmnmx, prepare_fmnmx, true, "FTZ NAN XORSIGN", "fp32", ALU, 2, WORD)
OP(FMNMX3, fmnmx3, prepare_fmnmx, true, "FTZ NAN", "fp32", ALU, 2, WORD)
OP(FSEL, fsel, nullptr, true, "", "fp32", ALU, 2, WORD)
OP(FSETP, fsetp, prepare_comparison, false, COMPARISON_WORDS, "fp32", ALU, 2, WORD)
OP(FSET, fset, prepare_comparison, true, COMPARISON_WORDS, "fp32", ALU, 2, WORD)
OP(FCHK, fchk, nullptr, false, "", "fp32", ALU, 2, WORD)
OP(MUFU, mufu, prepare_mufu, true, "RCP RSQ EX2 LG2 SQRT SIN COS TANH RCP64H RSQ64H F16 BF16", "MUFU", XU, 8, WORD)
OP(DADD, dadd, prepare_arithmetic, true, ARITHMETIC_WORDS, "fp64", FP64, 2, DOUBLE)
OP(DMUL, dmul, prepare_arithmetic, true, ARITHMETIC_WORDS, "fp64", FP64, 2, DOUBLE)
OP(DFMA, dfma, prepare_arithmetic, true, ARITHMETIC_WORDS, "fp64", FP64, 2, DOUBLE)
OP(DSETP, dsetp, prepare_dsetp, false, COMPARISON_WORDS " MIN MAX", "fp64", FP64, 2, DOUBLE)
OP(F2I, f2i, prepare_conversion, true, CONVERSION_WORDS, "", XU, 2, PAIR)
OP(I2I, narrow, prepare_narrow, true, "U8 S8 U16 S16 S32 U32 SAT", "", ALU, 2, WORD)
OP(I2IP, narrow, prepare_narrow, true, "U8 S8 U16 S16 S32 U32 SAT", "", ALU, 2, WORD)
OP(F2IP, narrow, prepare_narrow, true, "U8 S8 U16 S16 F32 NTZ TRUNC FLOOR CEIL FTZ", "", ALU, 2, WORD)
OP(I2F, i2f, prepare_conversion, true, CONVERSION_WORDS, "", XU, 2, PAIR)
OP(I2FP, i2f, prepare_conversion, true, CONVERSION_WORDS, "", ALU, 2, PAIR)
OP(F2F, f2f, prepare_conversion, true, CONVERSION_WORDS, "", XU, 2, PAIR)
OP(FRND, f2f, prepare_conversion, true, CONVERSION_WORDS, "", XU, 2, PAIR)
OP(F2FP, f2fp, nullptr, true,
   "F16 F32 BF16 E4M3 E5M2 PACK_AB PACK_AB_MERGE_C UNPACK_B UNPACK_B_MERGE_C RELU RZ RN SATFINITE", "", ALU, 2, WORD)
OP(HADD2, pairs_of<false>, prepare_pairs<PLUS>, true, PAIR_WORDS, "fp16", FMA, 1, WORD)
OP(HMUL2, pairs_of<false>, prepare_pairs<TIMES>, true, PAIR_WORDS, "fp16", FMA, 1, WORD)
OP(HFMA2, pairs_of<false>, prepare_pairs<FUSED>, true, PAIR_WORDS, "fp16", FMA, 1, WORD)
OP(HMNMX2, pairs_of<false>, prepare_pairs<LEAST>, true, PAIR_WORDS, "fp16", ALU, 2, WORD)
OP(HSETP2, hsetp2, prepare_comparison, false, COMPARISON_WORDS, "fp16", ALU, 2, WORD)
OP(HSET2, hset2, prepare_comparison, true, COMPARISON_WORDS, "fp16", ALU, 2, WORD)
#endif

#ifdef OF_TENSOR
OP(BMMA, multiply_warp, prepare_product, true, "AND POPC #", "tensor", TENSOR, 0, MATRICES)
OP(HMMA, multiply_warp, prepare_product, true, PRODUCT_WORDS, "tensor", TENSOR, 0, MATRICES)
OP(QMMA, multiply_warp, prepare_product, true, PRODUCT_WORDS, "tensor", TENSOR, 0, MATRICES)
OP(IMMA, multiply_warp, prepare_product, true, PRODUCT_WORDS, "tensor", TENSOR, 0, MATRICES)
ACCESS(BGMMA, multiply_group, prepare_product, true,
       "AND POPC #x#x#", "tensor", TENSOR, 0, GROUP, OPERAND, SHARED, READ)
ACCESS(HGMMA, multiply_group, prepare_product, true, GROUP_WORDS, "tensor", TENSOR, 0, GROUP, OPERAND, SHARED, READ)
ACCESS(QGMMA, multiply_group, prepare_product, true, GROUP_WORDS, "tensor", TENSOR, 0, GROUP, OPERAND, SHARED, READ)
ACCESS(IGMMA, multiply_group, prepare_product, true, GROUP_WORDS, "tensor", TENSOR, 0, GROUP, OPERAND, SHARED, READ)
OP(DMMA, multiply_doubles, prepare_doubles, true, "#x#x# #", "tensor", TENSOR, 0, DOUBLE)
ACCESS(LDSM, load_matrices, prepare_matrices, true, MATRIX_WORDS, "LDSM", LSU, 4, COUNTED, MATRIX, SHARED, READ)
ACCESS(STSM, store_matrices, prepare_matrices, false, MATRIX_WORDS, "", LSU, 4, COUNTED, MATRIX, SHARED, WRITE)
OP(MOVM, transpose_register, prepare_matrices, true, MATRIX_WORDS, "", ALU, 2, WORD)
#endif

#ifdef OF_MEMORY
ACCESS(LDG, load, prepare_memory, true, ACCESS_WORDS " CONSTANT", "LDG", LSU, 4, DATA, PLAIN, GLOBAL, READ)
ACCESS(LD, load, prepare_memory, true, ACCESS_WORDS, "LDG", LSU, 4, DATA, GENERIC, ANY, READ)
ACCESS(LDS, load, prepare_memory, true, "U 32 64 128 U8 S8 U16 S16", "LDS", LSU, 4, DATA, PLAIN, SHARED, READ)
ACCESS(LDL, load, prepare_memory, true, ACCESS_WORDS, "LDL", LSU, 4, DATA, NONE, LOCAL, READ)
ACCESS(STG, store, prepare_memory, false, ACCESS_WORDS, "STG", LSU, 4, DATA, PLAIN, GLOBAL, WRITE)
ACCESS(ST, store, prepare_memory, false, ACCESS_WORDS, "STG", LSU, 4, DATA, GENERIC, ANY, WRITE)
ACCESS(STS, store, prepare_memory, false, "32 64 128 U8 S8 U16 S16", "STS", LSU, 4, DATA, PLAIN, SHARED, WRITE)
ACCESS(STL, store, prepare_memory, false, ACCESS_WORDS, "STL", LSU, 4, DATA, NONE, LOCAL, WRITE)
ACCESS(ATOMG, atomic, prepare_atomic, true, ATOMIC_WORDS, "atomic", LSU, 4, PAIR, ATOMIC, GLOBAL, UPDATE)
ACCESS(ATOM, atomic, prepare_atomic, true, ATOMIC_WORDS, "atomic", LSU, 4, PAIR, ATOMIC, ANY, UPDATE)
ACCESS(ATOMS, atomic, prepare_atomic, true, ATOMIC_WORDS, "atomic", LSU, 4, PAIR, ATOMIC, SHARED, UPDATE)
ACCESS(RED, atomic, prepare_atomic, false, ATOMIC_WORDS, "atomic", LSU, 4, PAIR, ATOMIC, ANY, UPDATE)
ACCESS(REDG, atomic, prepare_atomic, false, ATOMIC_WORDS, "atomic", LSU, 4, PAIR, ATOMIC, GLOBAL, UPDATE)
OP(QSPC, query_space, prepare_query, true, "E S D L G", "", ALU, 2, WORD)
ACCESS(LDCU, load_constant, prepare_constant, true, "64 U16 S16 U8 S8 32", "LDC", LSU, 4, DATA, NONE, CONSTANT, READ)
ACCESS(LDC, load_constant, prepare_constant, true, "64 U16 S16 U8 S8 32", "LDC", LSU, 4, DATA, NONE, CONSTANT, READ)
#endif

#ifdef OF_TEXTURE
OP(TEX, sample, prepare_sample, true, "SCR NODEP B LL LZ LC", "TEX", LSU, 8, DATA)
OP(TXD, sample, prepare_sample, true, "SCR NODEP", "TEX", LSU, 8, DATA)
OP(TLD, sample, prepare_sample, true, "SCR NODEP LL LZ", "TEX", LSU, 8, DATA)
OP(TLD4, sample, prepare_sample, true, "SCR NODEP R G B A", "TEX", LSU, 8, DATA)
OP(SULD, surface, prepare_surface, true, SURFACE_WORDS, "TEX", LSU, 8, DATA)
OP(SUST, surface, prepare_surface, false, SURFACE_WORDS, "TEX", LSU, 8, DATA)
#endif

#ifdef OF_ASYNC
ACCESS(SYNCS, barrier, prepare_barrier, false,
       "EXCH 64 PHASECHK TRANS64 TRYWAIT CCTL IV ARRIVE RED OPTOUT A1T0 ART0 A0TR A0TX A0T1", "BAR", LSU, 4, PAIR,
       NONE, SHARED, WRITE)
OP(ARRIVES, arrive_after_copies, nullptr, false, "LDGSTSBAR 64 ARVCNT TRANSCNT", "", LSU, 4, WORD)
ACCESS(LDGSTS, copy_of_lanes, prepare_lanes_copy, false,
       "E BYPASS LTC64B LTC128B LTC256B 32 64 128 ZFILL CONSTANT EF EL LU", "LDGSTS", LSU, 4, WORD,
       CP_ASYNC, GLOBAL, COPY)
OP(LDGDEPBAR, close_group, nullptr, false, "", "", LSU, 4, WORD)
OP(DEPBAR, wait_for_group, prepare_wait_for_group, false, "LE", "", NONE, 1, WORD)
ACCESS(UBLKCP, bulk, prepare_bulk, false, "S G MULTICAST", "TMA", TMA, 1, WORD, BULK, ANY, COPY)
ACCESS(UBLKRED, bulk, prepare_bulk, false, "S G MULTICAST " REDUCTION_WORDS, "TMA", TMA, 1, WORD, BULK, ANY, COPY)
ACCESS(UTMALDG, load_tile, prepare_tile, false, "1D 2D 3D 4D 5D MULTICAST", "TMA", TMA, 1, WORD, BULK, ANY, READ)
ACCESS(UTMASTG, store_tile, prepare_tile, false, "1D 2D 3D 4D 5D", "TMA", TMA, 1, WORD, BULK, ANY, WRITE)
ACCESS(UTMAREDG, store_tile, prepare_tile, false,
       "1D 2D 3D 4D 5D " REDUCTION_WORDS, "TMA", TMA, 1, WORD, BULK, ANY, WRITE)
OP(UTMACMDFLUSH, close_bulk_group, nullptr, false, "", "", TMA, 1, WORD)
ACCESS(STAS, store_and_signal, prepare_store_and_signal, false, SIGNAL_WORDS, "", LSU, 4, DATA, BULK, ANY, WRITE)
ACCESS(REDAS, store_and_signal, prepare_store_and_signal, false, SIGNAL_WORDS, "", LSU, 4, DATA, BULK, ANY, WRITE)
OP(WARPGROUP, warp_group, nullptr, false, "ARRIVE DEPBAR LE", "", TENSOR, 1, WORD)
OP(USETMAXREG, registers, nullptr, false, "TRY_ALLOC CTAPOOL DEALLOC", "", NONE, 1, WORD)
OP(UCGABAR_ARV, arrive_in_cluster, nullptr, false, "", "BAR", ADU, 2, WORD)
OP(UCGABAR_WAIT, wait_for_cluster, nullptr, false, "", "BAR", ADU, 2, WORD)
OP(UBLKPF, no_effect, nullptr, false, "L2", "TMA", TMA, 1, WORD)
OP(UTMAPF, no_effect, nullptr, false, "L2 1D 2D 3D 4D 5D", "TMA", TMA, 1, WORD)
OP(UTMACCTL, no_effect, nullptr, false, "PF IV", "", TMA, 1, WORD)
OP(WARPGROUPSET, no_effect, nullptr, false, "", "", NONE, 1, WORD)
OP(FENCE, fence_view, nullptr, false, "VIEW ASYNC S G", "", LSU, 4, WORD)
OP(ACQBULK, wait_for_launch, nullptr, false, "", "", NONE, 1, WORD)
OP(PREEXIT, start_next, nullptr, false, "", "", NONE, 1, WORD)
#endif

#ifdef OF_INTEGERS
OP(IADD3, iadd3, prepare_iadd3, true, "X 64", "", ALU, 2, PAIR)
OP(IMAD, imad, prepare_imad, true, "X U32 S32 HI WIDE MOV SHL IADD", "", FMA_HEAVY, 2, PAIR)
OP(VIADD, viadd, prepare_viadd, true, "16x2 64", "", ALU, 2, WORD)
OP(IADD, viadd, prepare_viadd, true, "16x2 64", "", ALU, 2, WORD)
OP(LEA, lea, prepare_lea, true, "X HI SX32", "", ALU, 2, WORD)
OP(LOP3, lop3, nullptr, true, "LUT", "", ALU, 2, WORD)
OP(PLOP3, plop3, prepare_plop3, false, "LUT", "", ALU, 2, PREDICATES)
OP(SHF, shf, prepare_shf, true, "L R U32 S32 U64 S64 HI W", "", ALU, 2, PAIR)
OP(ISETP, isetp, prepare_isetp, false, "LT LE GT GE EQ NE T F AND OR XOR EX U32 S32 U64 S64", "", ALU, 2, WORD)
OP(MOV, mov, prepare_move, true, "64", "", ALU, 2, WORD)
OP(LEPC, lepc, prepare_lepc, true, "", "", ALU, 2, WORD)
OP(SEL, sel, prepare_select, true, "64", "", ALU, 2, WORD)
OP(IABS, iabs, nullptr, true, "", "", ALU, 2, WORD)
OP(IMNMX, minimum, prepare_minimum, true, MINIMUM_WORDS, "", ALU, 2, WORD)
OP(VIMNMX, minimum, prepare_minimum, true, MINIMUM_WORDS, "", ALU, 2, WORD)
OP(VIADDMNMX, minimum, prepare_minimum, true, MINIMUM_WORDS, "", ALU, 2, WORD)
OP(VIMNMX3, minimum_of_any, prepare_minimum, true, MINIMUM_WORDS, "", ALU, 2, WORD)
OP(VABSDIFF, difference, prepare_difference, true, "U8 S8 U32 S32 ACC", "", ALU, 2, WORD)
OP(VABSDIFF4, difference, prepare_difference, true, "U8 S8 U32 S32 ACC", "", ALU, 2, WORD)
OP(PRMT, prmt, prepare_prmt, true, "F4E B4E RC8 ECL ECR RC16", "", ALU, 2, WORD)
OP(POPC, popc, nullptr, true, "", "", XU, 8, WORD)
OP(FLO, flo, prepare_flo, true, "SH U32 S32", "", XU, 8, WORD)
OP(BREV, brev, nullptr, true, "", "", XU, 8, WORD)
OP(BMSK, bmsk, nullptr, true, "W C", "", ALU, 2, WORD)
OP(SGXT, sgxt, prepare_sgxt, true, "U32 W S32", "", ALU, 2, WORD)
OP(IDP, idp, nullptr, true, "2A 4A HI LO U8 S8 U16 S16", "", FMA_HEAVY, 2, WORD)
OP(P2R, p2r, nullptr, true, "", "", ALU, 2, WORD)
OP(R2P, r2p, nullptr, false, "", "", ALU, 2, WORD)
OP(UP2UR, p2r, nullptr, true, "", "", ALU, 2, WORD)
OP(UR2UP, r2p, nullptr, false, "", "", ALU, 2, WORD)
OP(R2UR, r2ur, nullptr, true, "OR", "", ALU, 2, WORD)
OP(S2R, s2r, prepare_special, true, "32", "", ADU, 2, WORD)
OP(S2UR, s2r, prepare_special, true, "32", "", ADU, 2, WORD)
OP(CS2R, cs2r, prepare_special, true, "32", "", ALU, 2, PAIR_UNLESS_32)
OP(SHFL, shfl, prepare_shfl, true, "IDX UP DOWN BFLY", "SHFL", LSU, 4, WORD)
OP(VOTE, vote, nullptr, false, "ALL ANY EQ", "vote", ALU, 2, PREDICATES)
OP(VOTEU, vote, prepare_uniform_vote, false, "ALL ANY EQ", "vote", ALU, 2, PREDICATES)
OP(MATCH, match, nullptr, true, "ANY ALL U32 U64", "vote", XU, 8, PAIR)
OP(CREDUX, redux, nullptr, true, "MIN MAX U32 S32", "SHFL", XU, 8, WORD)
OP(REDUX, redux, nullptr, true, "SUM MIN MAX AND OR XOR S32 U32", "SHFL", XU, 8, WORD)
OP(ELECT, elect, nullptr, true, "", "", ALU, 2, WORD)
#endif

#ifdef OF_CONTROL
OP(BRA, bra, nullptr, false, "U ANY DIV CONV INC DEC", "branch", CBU, 1, PREDICATES)
OP(BRX, brx, nullptr, false, "INC DEC", "branch", CBU, 1, WORD)
OP(CALL, call, nullptr, false, "REL ABS NOINC INC", "branch", CBU, 1, WORD)
OP(RET, ret, nullptr, false, "REL ABS NODEC DEC", "branch", CBU, 1, WORD)
OP(EXIT, exit_lanes, nullptr, false, "", "", CBU, 1, PREDICATES)
OP(BSSY, bssy, nullptr, false, "RECONVERGENT RELIABLE", "branch", CBU, 1, WORD)
OP(BSYNC, bsync, nullptr, false, "RECONVERGENT RELIABLE", "branch", CBU, 1, WORD)
OP(BREAK, leave, nullptr, false, "RELIABLE", "branch", CBU, 1, WORD)
OP(BMOV, bmov, nullptr, false, "32 64 CLEAR", "", CBU, 1, WORD)
OP(WARPSYNC, warpsync, nullptr, false, "ALL EXCLUSIVE COLLECTIVE RECONVERGENT", "branch", CBU, 1, WORD)
ACCESS(BAR, bar, nullptr, false, "SYNC RED ARV DEFER_BLOCKING POPC OR AND", "BAR", ADU, 2, WORD, BARRIER, SHARED, READ)
OP(B2R, b2r, nullptr, true, "RESULT", "", ADU, 2, WORD)
OP(BPT, trap, nullptr, false, "TRAP", "", CBU, 1, WORD)
OP(NANOSLEEP, sleep, nullptr, false, "", "", CBU, 1, WORD)
OP(NOP, no_operation, nullptr, false, "SYNC", "", NONE, 1, WORD)
ACCESS(MEMBAR, memory_barrier, nullptr, false, "ALL SC GPU SYS CTA VC", "", LSU, 4, WORD, FENCE, NONE, NONE)
OP(CCTL, invalidate, nullptr, false, "E IVALL PF1 PF2", "", LSU, 4, WORD)
OP(CCTLL, nothing, nullptr, false, "E IVALL PF1 PF2", "", LSU, 4, WORD)
OP(UCCTL, nothing, nullptr, false, "E IVALL PF1 PF2", "", LSU, 4, WORD)
OP(YIELD, nothing, nullptr, false, "", "", NONE, 1, WORD)
OP(ENDCOLLECTIVE, nothing, nullptr, false, "", "", NONE, 1, WORD)
OP(ERRBAR, nothing, nullptr, false, "", "", NONE, 1, WORD)
OP(CGAERRBAR, nothing, nullptr, false, "", "", NONE, 1, WORD)
OP(PMTRIG, nothing, nullptr, false, "", "", NONE, 1, WORD)
OP(KILL, nothing, nullptr, false, "", "", NONE, 1, WORD)
#endif

#ifdef OF_NOT_EXECUTED
OP(FFMA2, nullptr, nullptr, true, "", "FFMA", FMA, 2, PAIR)
OP(FADD2, nullptr, nullptr, true, "", "fp32", FMA, 2, PAIR)
OP(FMUL2, nullptr, nullptr, true, "", "fp32", FMA, 2, PAIR)
OP(FSWZADD, nullptr, nullptr, true, "", "fp32", FMA, 1, WORD)
OP(UTCHMMA, nullptr, nullptr, false, "", "tensor", TENSOR, 0, GROUP)
OP(UTCQMMA, nullptr, nullptr, false, "", "tensor", TENSOR, 0, GROUP)
OP(UTCMXQMMA, nullptr, nullptr, false, "", "tensor", TENSOR, 0, GROUP)
OP(UTCATOMSWS, nullptr, nullptr, false, "", "tensor memory", NONE, 1, WORD)
OP(UVIRTCOUNT, nullptr, nullptr, false, "", "tensor memory", NONE, 1, WORD)
OP(UTCCP, nullptr, nullptr, false, "", "tensor memory", TENSOR, 1, WORD)
OP(UTCSHIFT, nullptr, nullptr, false, "", "tensor memory", TENSOR, 1, WORD)
OP(UTCBAR, nullptr, nullptr, false, "", "tensor memory", TENSOR, 1, WORD)
OP(LDTM, nullptr, nullptr, true, "", "tensor memory", LSU, 4, DATA)
OP(STTM, nullptr, nullptr, false, "", "tensor memory", LSU, 4, DATA)
OP(UTCIMMA, nullptr, nullptr, false, "", "tensor", TENSOR, 0, GROUP)
OP(BARRIER, nullptr, nullptr, false, "", "BAR", ADU, 2, WORD)
OP(JMP, nullptr, nullptr, false, "", "branch", CBU, 1, WORD)
#endif
