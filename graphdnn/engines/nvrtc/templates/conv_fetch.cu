    // Row m of the product is one place of the result, k runs over the taps of the filter: channels innermost where they
    // are neighbours in memory, else outermost.
    struct Tap { int c, d, h, w; };
    auto tap_of = [](Index k) {
        if (CHANNELS_INNER) {
            const int tap = (int)(k / CG);
            return Tap{(int)(k % CG), tap / (KW * KH), tap / KW % KH, tap % KW};
        }
        return Tap{(int)(k / (KW * KH * KD)), (int)(k / (KW * KH) % KD), (int)(k / KW % KH), (int)(k % KW)};
    };
    Index origin[A_GROUPS];
    int from_d[A_GROUPS], from_h[A_GROUPS], from_w[A_GROUPS];
    _Pragma("unroll") for (int g = 0; g < A_GROUPS; ++g) {
        const Index m = first_m + TileA::across(g * THREADS + thread);
        from_w[g] = (int)(m % OW) * STEP_W - PAD_W;
        from_h[g] = (int)(m / OW % OH) * STEP_H - PAD_H;
        from_d[g] = (int)(m / ((Index)OW * OH) % OD) * STEP_D - PAD_D;
        origin[g] = m / ((Index)OW * OH * OD) * X_N + (Index)from_d[g] * X_D + (Index)from_h[g] * X_H
            + (Index)from_w[g] * X_W;
        // Beyond the last row: no tap lies inside.
        if (m >= M) from_w[g] = -(1 << 30);
    }
    auto fetch = [&](Index k0) {
        _Pragma("unroll") for (int g = 0; g < A_GROUPS; ++g) {
            const Index k = k0 + TileA::k(g * THREADS + thread);
            const Tap tap = tap_of(k);
            const int d = from_d[g] + tap.d * DILATE_D, h = from_h[g] + tap.h * DILATE_H, w = from_w[g] + tap.w * DILATE_W;
            const bool inside = k < K && (unsigned)d < XD && (unsigned)h < XH && (unsigned)w < XW;
            const Index at = origin[g] + (Index)tap.c * X_C + (Index)(tap.d * DILATE_D) * X_D
                + (Index)(tap.h * DILATE_H) * X_H + (Index)(tap.w * DILATE_W) * X_W;
            next_a[g] = TileA::fetch(a, at, X_C, inside, wide_a);
        }
        _Pragma("unroll") for (int g = 0; g < B_GROUPS; ++g) {
            const int e = g * THREADS + thread;
            const Index n = first_n + TileB::across(e), k = k0 + TileB::k(e);
            const Tap tap = tap_of(k);
            const Index at = n * W_K + (Index)tap.c * W_C + (Index)tap.d * W_D + (Index)tap.h * W_H
                + (Index)tap.w * W_W;
            next_b[g] = TileB::fetch(b, at, 1, n < N && k < K, wide_b);
        }
    };
