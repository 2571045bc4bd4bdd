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
