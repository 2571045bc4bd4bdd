    const int thread = threadIdx.x;
#if MATRIX_UNITS
    alignas(16) __shared__ TA shared_a[2][BM][BK + PAD];
    alignas(16) __shared__ TB shared_b[2][BN][BK + PAD];
    const int warp_m = thread / 32 / WARPS_N * (TM * 8), warp_n = thread / 32 % WARPS_N * (TN * 4);
    const int lane_row = thread % 32 / 4, lane_pair = thread % 4 * 2;
    const int thread_m = warp_m + lane_row, thread_n = warp_n + lane_pair;
#else
    alignas(16) __shared__ Acc shared_a[2][BK][BM + PAD];
    alignas(16) __shared__ Acc shared_b[2][BK][BN + PAD];
    const int thread_m = thread / (BN / TN), thread_n = thread % (BN / TN);
#endif
    const Index first_m = (Index)tile_m * BM, first_n = (Index)tile_n * BN;
    const bool wide_a = aligned(VA * (int)sizeof(TA), a), wide_b = aligned(VB * (int)sizeof(TB), b);
    Pack<TA, VA> next_a[A_GROUPS];
    Pack<TB, VB> next_b[B_GROUPS];
    Acc sum[TM][TN];
    _Pragma("unroll") for (int i = 0; i < TM; ++i) {
        _Pragma("unroll") for (int j = 0; j < TN; ++j) sum[i][j] = (Acc)0;
    }
