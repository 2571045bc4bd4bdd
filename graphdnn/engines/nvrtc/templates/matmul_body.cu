    alignas(16) __shared__ Acc shared_a[2][BK][BM + PAD];
    alignas(16) __shared__ Acc shared_b[2][BK][BN + PAD];
    const int thread = threadIdx.x;
    const int thread_m = thread / (BN / TN), thread_n = thread % (BN / TN);
    const int first_m = tile_m * BM, first_n = tile_n * BN;
    const bool wide_a = aligned(VA * (int)sizeof(TA), a), wide_b = aligned(VB * (int)sizeof(TB), b);
    Pack<TA, VA> next_a[A_GROUPS];
    Pack<TB, VB> next_b[B_GROUPS];
    Acc sum[TM][TN];
    _Pragma("unroll") for (int i = 0; i < TM; ++i) {
        _Pragma("unroll") for (int j = 0; j < TN; ++j) sum[i][j] = (Acc)0;
    }
    auto fetch = [&](int k0) {
        _Pragma("unroll") for (int g = 0; g < A_GROUPS; ++g) {
            const int e = g * THREADS + thread, m = first_m + TileA::across(e), k = k0 + TileA::k(e);
            next_a[g] = TileA::fetch(a, (Index)m * A_M + (Index)k * A_K, A_ALONG_K ? A_K : A_M, m < M && k < K, wide_a);
        }
        _Pragma("unroll") for (int g = 0; g < B_GROUPS; ++g) {
            const int e = g * THREADS + thread, n = first_n + TileB::across(e), k = k0 + TileB::k(e);
            next_b[g] = TileB::fetch(b, (Index)n * B_N + (Index)k * B_K, B_ALONG_K ? B_K : B_N, n < N && k < K, wide_b);
        }
    };
    auto keep = [&](int half) {
        _Pragma("unroll") for (int g = 0; g < A_GROUPS; ++g) TileA::keep(shared_a[half], g * THREADS + thread, next_a[g]);
        _Pragma("unroll") for (int g = 0; g < B_GROUPS; ++g) TileB::keep(shared_b[half], g * THREADS + thread, next_b[g]);
    };
    fetch(0);
    keep(0);
    __syncthreads();
    for (int k0 = 0, half = 0; k0 < K; k0 += BK, half ^= 1) {
        if (k0 + BK < K) fetch(k0 + BK);
        _Pragma("unroll") for (int k = 0; k < BK; ++k) {
            Acc x[TM], y[TN];
            _Pragma("unroll") for (int i = 0; i < TM; i += RUN_M) {
                const auto run = *reinterpret_cast<const Pack<Acc, RUN_M>*>(&shared_a[half][k][row_of(thread_m, i)]);
                _Pragma("unroll") for (int r = 0; r < RUN_M; ++r) x[i + r] = run.at[r];
            }
            _Pragma("unroll") for (int j = 0; j < TN; j += RUN_N) {
                const auto run = *reinterpret_cast<const Pack<Acc, RUN_N>*>(&shared_b[half][k][column_of(thread_n, j)]);
                _Pragma("unroll") for (int r = 0; r < RUN_N; ++r) y[j + r] = run.at[r];
            }
            _Pragma("unroll") for (int i = 0; i < TM; ++i) {
                _Pragma("unroll") for (int j = 0; j < TN; ++j) sum[i][j] += x[i] * y[j];
            }
        }
        if (k0 + BK < K) keep(half ^ 1);
        __syncthreads();
    }
