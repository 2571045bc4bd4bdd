// One tile of C = A B a block: operands go through shared memory in Acc, each thread keeps TM x TN sums in registers.
// While a tile is multiplied, the next one is on its way from memory into registers, and from there to the other half
// of shared memory.
constexpr int THREADS = (BM / TM) * (BN / TN);
constexpr int A_GROUPS = BM * BK / (THREADS * VA);
constexpr int B_GROUPS = BN * BK / (THREADS * VB);
static_assert(A_GROUPS * THREADS * VA == BM * BK && B_GROUPS * THREADS * VB == BN * BK, "a tile divides among the threads");

// A group of elements from memory: zeros where it does not lie inside the operand.
template <int VECTOR> struct Fetcher {
    template <class T>
    static __device__ __forceinline__ Pack<T, VECTOR> fetch(const T* p, Index at, Index step, bool inside, bool wide) {
        Pack<T, VECTOR> x;
        if (VECTOR > 1 && inside && wide) return load_pack<T, VECTOR>(p + at, true);
        _Pragma("unroll") for (int j = 0; j < VECTOR; ++j) {
            if (inside) x.at[j] = p[at + j * step];
            else x.at[j] = narrow<T>((Acc)0);
        }
        return x;
    }
};

#if MATRIX_UNITS
// Halves, multiplied by the matrix units: both operands lie in shared memory as they are, k innermost, and a warp holds
// TM * 8 x TN * 4 sums in pieces of 16 x 8.  Of a piece, a thread has two neighbours in each of two rows.
constexpr int WARPS_N = BN / (TN * 4);
constexpr int PAD = 8;  // rows of shared memory start in different banks, at multiples of 16 bytes

__device__ __forceinline__ int row_of(int thread, int i) { return thread + i / 2 * 16 + i % 2 * 8; }
__device__ __forceinline__ int column_of(int thread, int j) { return thread + j / 2 * 8 + j % 2; }

// Group e of an operand's tile.  Across k, neighbouring threads first fill 32 bytes of memory, then go along k.
template <int WIDTH, int VECTOR, bool ALONG_K> struct Tile : Fetcher<VECTOR> {
    static constexpr int SIDE = VECTOR < 16 ? 16 / VECTOR : 1;
    static __device__ __forceinline__ int k(int e) { return ALONG_K ? e % (BK / VECTOR) * VECTOR : e / SIDE % BK; }
    static __device__ __forceinline__ int across(int e) {
        return ALONG_K ? e / (BK / VECTOR) : (e % SIDE + e / (SIDE * BK) * SIDE) * VECTOR;
    }
    template <class T>
    static __device__ __forceinline__ void keep(T (*shared)[BK + PAD], int e, Pack<T, VECTOR> x) {
        if (ALONG_K) {
            *reinterpret_cast<Pack<T, VECTOR>*>(&shared[across(e)][k(e)]) = x;
        } else {
            _Pragma("unroll") for (int j = 0; j < VECTOR; ++j) shared[across(e) + j][k(e)] = x.at[j];
        }
    }
};

__device__ __forceinline__ unsigned pair_at(const void* p) { return *reinterpret_cast<const unsigned*>(p); }

// Adds the product of a 16 x 16 and a 16 x 8 piece: rows r and r + 8 of two neighbouring columns.
__device__ __forceinline__ void multiply(
    f16, float* upper, float* lower, const unsigned (&a)[4], const unsigned (&b)[2]
) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(upper[0]), "+f"(upper[1]), "+f"(lower[0]), "+f"(lower[1])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void multiply(
    bf16, float* upper, float* lower, const unsigned (&a)[4], const unsigned (&b)[2]
) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(upper[0]), "+f"(upper[1]), "+f"(lower[0]), "+f"(lower[1])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#else
constexpr int RUN_M = TM < 4 ? TM : 4;  // neighbours in one row of shared memory, moved together
constexpr int RUN_N = TN < 4 ? TN : 4;
constexpr int PAD = 4;

// Which row of the tile a thread's sum i belongs to: runs of neighbours, spread over the tile.
__device__ __forceinline__ int row_of(int thread, int i) {
    return i / RUN_M * (BM / TM * RUN_M) + thread * RUN_M + i % RUN_M;
}
__device__ __forceinline__ int column_of(int thread, int j) {
    return j / RUN_N * (BN / TN * RUN_N) + thread * RUN_N + j % RUN_N;
}

// Group e of an operand's tile: its place (across, k), neighbours along k or across it, whichever is dense in memory.
template <int WIDTH, int VECTOR, bool ALONG_K> struct Tile : Fetcher<VECTOR> {
    static __device__ __forceinline__ int k(int e) { return ALONG_K ? e % (BK / VECTOR) * VECTOR : e / (WIDTH / VECTOR); }
    static __device__ __forceinline__ int across(int e) {
        return ALONG_K ? e / (BK / VECTOR) : e % (WIDTH / VECTOR) * VECTOR;
    }
    template <class T>
    static __device__ __forceinline__ void keep(Acc (*shared)[WIDTH + PAD], int e, Pack<T, VECTOR> x) {
        _Pragma("unroll") for (int j = 0; j < VECTOR; ++j) {
            shared[k(e) + (ALONG_K ? j : 0)][across(e) + (ALONG_K ? 0 : j)] = (Acc)widen(x.at[j]);
        }
    }
};
#endif
typedef Tile<BM, VA, A_ALONG_K> TileA;
typedef Tile<BN, VB, B_ALONG_K> TileB;
