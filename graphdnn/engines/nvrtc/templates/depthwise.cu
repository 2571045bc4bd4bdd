// One filter a channel.  A thread computes TW neighbours along the width for VC neighbouring channels; the filters of a
// block's channels lie in shared memory, row after row of the input goes through registers.
constexpr int SPAN = (TW - 1) * STEP_W + (KW - 1) * DILATE_W + 1;

__device__ __forceinline__ void keep_filters(Acc (*filters)[LANES * VC], const TB* w, int first_channel) {
    for (int e = threadIdx.x; e < KH * KW * LANES * VC; e += THREADS) {
        const int c = FILTER_DENSE ? e / (KH * KW) : e % (LANES * VC);
        const int tap = FILTER_DENSE ? e % (KH * KW) : e / (LANES * VC);
        if (first_channel + c < C) {
            const Index at = (Index)(first_channel + c) * W_C + (Index)(tap / KW) * W_H + (Index)(tap % KW) * W_W;
            filters[tap][c] = (Acc)load(w + at);
        }
    }
    __syncthreads();
}

// Adds one row of the input, from column `from` on, times one row of the filter.
__device__ __forceinline__ void add_row(Acc (*sum)[VC], const TA* row, int from, const Acc* filter, bool wide) {
    Pack<TA, VC> x[SPAN];
    _Pragma("unroll") for (int s = 0; s < SPAN; ++s) {
        _Pragma("unroll") for (int j = 0; j < VC; ++j) x[s].at[j] = narrow<TA>((Acc)0);
        if ((unsigned)(from + s) < XW) x[s] = load_pack<TA, VC>(row + (Index)(from + s) * X_W, wide);
    }
    _Pragma("unroll") for (int k = 0; k < KW; ++k) {
        const auto f = *reinterpret_cast<const Pack<Acc, VC>*>(filter + k * (LANES * VC));
        _Pragma("unroll") for (int t = 0; t < TW; ++t) {
            _Pragma("unroll") for (int j = 0; j < VC; ++j) {
                sum[t][j] += (Acc)widen(x[t * STEP_W + k * DILATE_W].at[j]) * f.at[j];
            }
        }
    }
}
