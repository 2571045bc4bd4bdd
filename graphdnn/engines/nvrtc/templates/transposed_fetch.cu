    // Row m of the product is one place of the result within the phase, k runs over the taps that reach the phase.
    if (first_m >= M) return;
    struct Tap { int c, d, h, w; };
    const int some_d = taps_d > 0 ? taps_d : 1, some_h = taps_h > 0 ? taps_h : 1, some_w = taps_w > 0 ? taps_w : 1;
    auto tap_of = [&](Index k) {
        if (CHANNELS_INNER) {
            const int tap = (int)(k / CG);
            return Tap{(int)(k % CG), tap / (some_w * some_h), tap / some_w % some_h, tap % some_w};
        }
        const int rest = (int)(k / some_w);
        return Tap{rest / (some_h * some_d), rest / some_h % some_d, rest % some_h, (int)(k % some_w)};
    };
    Index image[A_GROUPS];
    int from_d[A_GROUPS], from_h[A_GROUPS], from_w[A_GROUPS];
    _Pragma("unroll") for (int g = 0; g < A_GROUPS; ++g) {
        const Index m = first_m + TileA::across(g * THREADS + thread);
        from_w[g] = (int)(m % places_w) + BASE_W[phase_w];
        from_h[g] = (int)(m / places_w % places_h) + BASE_H[phase_h];
        from_d[g] = (int)(m / ((Index)places_w * places_h) % places_d) + BASE_D[phase_d];
        image[g] = m / ((Index)places_w * places_h * places_d) * X_N;
        // Beyond the last row: no tap lies inside.
        if (m >= M) from_w[g] = -(1 << 30);
    }
    auto fetch = [&](Index k0) {
        _Pragma("unroll") for (int g = 0; g < A_GROUPS; ++g) {
            const Index k = k0 + TileA::k(g * THREADS + thread);
            const Tap tap = tap_of(k);
            const int d = from_d[g] - tap.d * BACK_D, h = from_h[g] - tap.h * BACK_H, w = from_w[g] - tap.w * BACK_W;
            const bool inside = k < K && (unsigned)d < XD && (unsigned)h < XH && (unsigned)w < XW;
            const Index at = image[g] + (Index)tap.c * X_C + (Index)d * X_D + (Index)h * X_H + (Index)w * X_W;
            next_a[g] = TileA::fetch(a, at, X_C, inside, wide_a);
        }
        _Pragma("unroll") for (int g = 0; g < B_GROUPS; ++g) {
            const int e = g * THREADS + thread;
            const Index n = first_n + TileB::across(e), k = k0 + TileB::k(e);
            const Tap tap = tap_of(k);
            const Index at = n * W_K + (Index)tap.c * W_C + (Index)(FIRST_D[phase_d] + tap.d * SKIP_D) * W_D
                + (Index)(FIRST_H[phase_h] + tap.h * SKIP_H) * W_H + (Index)(FIRST_W[phase_w] + tap.w * SKIP_W) * W_W;
            next_b[g] = TileB::fetch(b, at, 1, n < N && k < K, wide_b);
        }
    };
