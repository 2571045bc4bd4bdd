    alignas(16) __shared__ Acc filters[KH * KW][LANES * VC];
    const int chunk = blockIdx.x % CHUNKS;
    const int lane = threadIdx.x % LANES;
    const int strip = blockIdx.x / CHUNKS * STRIPS_A_BLOCK + threadIdx.x / LANES;
    keep_filters(filters, w, chunk * LANES * VC);
    const Index i1 = (chunk * LANES + lane) * VC;
    if (i1 >= C || strip >= STRIPS) return;
    const Index i2 = strip / STRIPS_A_ROW % OH, i0 = strip / (STRIPS_A_ROW * OH);
    const int first = strip % STRIPS_A_ROW * TW;
    const bool wide_x = VECTORS && aligned(VC * (int)sizeof(TA) < 16 ? VC * (int)sizeof(TA) : 16, x);
    Acc sum[TW][VC];
    _Pragma("unroll") for (int t = 0; t < TW; ++t) {
        _Pragma("unroll") for (int j = 0; j < VC; ++j) sum[t][j] = (Acc)0;
    }
    const TA* image = x + i0 * X_N + i1;
    for (int k = 0; k < KH; ++k) {
        const int h = (int)i2 * STEP_H - PAD_H + k * DILATE_H;
        if ((unsigned)h < XH) {
            add_row(sum, image + (Index)h * X_H, first * STEP_W - PAD_W, &filters[k * KW][lane * VC], wide_x);
        }
    }
