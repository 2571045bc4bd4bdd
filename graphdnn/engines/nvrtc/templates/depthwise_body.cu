    alignas(16) __shared__ Acc filters[KH * KW][LANES * VC];
    const int chunk = blockIdx.x % CHUNKS;
    const int lane = threadIdx.x % LANES;
    const int strip = blockIdx.x / CHUNKS * STRIPS_A_BLOCK + threadIdx.x / LANES;
    keep_filters(filters, w, chunk * LANES * VC);
    const Index at1 = (chunk * LANES + lane) * VC;
    if (at1 >= C || strip >= STRIPS) return;
    const int first_w = strip % STRIPS_A_ROW * TW, first_h = strip / STRIPS_A_ROW % STRIPS_A_COLUMN * TH;
    const Index at0 = strip / (STRIPS_A_ROW * STRIPS_A_COLUMN);
    const bool wide_x = VECTORS && aligned(VC * (int)sizeof(TA) < 16 ? VC * (int)sizeof(TA) : 16, x);
    Acc sum[TH][TW][VC];
    _Pragma("unroll") for (int u = 0; u < TH; ++u) {
        _Pragma("unroll") for (int t = 0; t < TW; ++t) {
            _Pragma("unroll") for (int j = 0; j < VC; ++j) sum[u][t][j] = (Acc)0;
        }
    }
    const TA* image = x + at0 * X_N + at1;
    const int from = first_w * STEP_W - PAD_W;
    _Pragma("unroll 1") for (int i = 0; i < ROWS; ++i) {
        const int h = first_h * STEP_H - PAD_H + i * (TH == 1 ? DILATE_H : 1);
        if ((unsigned)h >= XH) continue;
        const TA* row = image + (Index)h * X_H;
        Acc held[SPAN][VC];
        _Pragma("unroll") for (int s = 0; s < SPAN; ++s) {
            const Held<TA, VC> one(row + (Index)(from + s) * X_W, (unsigned)(from + s) < XW, wide_x);
            _Pragma("unroll") for (int j = 0; j < VC; ++j) held[s][j] = one.at(j);
        }
        _Pragma("unroll") for (int u = 0; u < TH; ++u) {
            const int k = TH == 1 ? i : i - u * STEP_H;
            if ((unsigned)k < KH) add_row(sum[u], held, &filters[k * KW][lane * VC]);
        }
    }
