    auto keep = [&](int half) {
        _Pragma("unroll") for (int g = 0; g < A_GROUPS; ++g) TileA::keep(shared_a[half], g * THREADS + thread, next_a[g]);
        _Pragma("unroll") for (int g = 0; g < B_GROUPS; ++g) TileB::keep(shared_b[half], g * THREADS + thread, next_b[g]);
    };
#if FOLD
    // Sums of sums: each product is rounded against a sum of few others, not of all that came before.
    Acc total[TM][TN] = {};
    auto fold = [&] {
        _Pragma("unroll") for (int i = 0; i < TM; ++i) {
            _Pragma("unroll") for (int j = 0; j < TN; ++j) {
                total[i][j] += sum[i][j];
                sum[i][j] = (Acc)0;
            }
        }
    };
#endif
    fetch(0);
    keep(0);
    __syncthreads();
    for (Index k0 = 0, half = 0; k0 < K; k0 += BK, half ^= 1) {
        if (k0 + BK < K) fetch(k0 + BK);
#if MATRIX_UNITS
        _Pragma("unroll") for (int k = 0; k < BK; k += 16) {
            unsigned x[TM / 2][4], y[TN / 2][2];
            _Pragma("unroll") for (int i = 0; i < TM / 2; ++i) {
                const int row = warp_m + i * 16 + lane_row;
                _Pragma("unroll") for (int q = 0; q < 4; ++q) {
                    x[i][q] = pair_at(&shared_a[half][row + q % 2 * 8][k + lane_pair + q / 2 * 8]);
                }
            }
            _Pragma("unroll") for (int j = 0; j < TN / 2; ++j) {
                _Pragma("unroll") for (int q = 0; q < 2; ++q) {
                    y[j][q] = pair_at(&shared_b[half][warp_n + j * 8 + lane_row][k + lane_pair + q * 8]);
                }
            }
            _Pragma("unroll") for (int i = 0; i < TM; i += 2) {
                _Pragma("unroll") for (int j = 0; j < TN; j += 2) {
                    multiply(TA{}, &sum[i][j], &sum[i + 1][j], x[i / 2], y[j / 2]);
                }
            }
        }
#else
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
#endif
#if FOLD
        if ((k0 / BK + 1) % FOLD == 0) fold();
#endif
        if (k0 + BK < K) keep(half ^ 1);
        __syncthreads();
    }
#if FOLD
    _Pragma("unroll") for (int i = 0; i < TM; ++i) {
        _Pragma("unroll") for (int j = 0; j < TN; ++j) sum[i][j] += total[i][j];
    }
#endif
