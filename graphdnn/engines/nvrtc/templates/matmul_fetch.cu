    auto fetch = [&](Index k0) {
        _Pragma("unroll") for (int g = 0; g < A_GROUPS; ++g) {
            const int e = g * THREADS + thread;
            const Index m = first_m + TileA::across(e), k = k0 + TileA::k(e);
            next_a[g] = TileA::fetch(a, m * A_M + k * A_K, A_ALONG_K ? A_K : A_M, m < M && k < K, wide_a);
        }
        _Pragma("unroll") for (int g = 0; g < B_GROUPS; ++g) {
            const int e = g * THREADS + thread;
            const Index n = first_n + TileB::across(e), k = k0 + TileB::k(e);
            next_b[g] = TileB::fetch(b, n * B_N + k * B_K, B_ALONG_K ? B_K : B_N, n < N && k < K, wide_b);
        }
    };
