// The orthonormal Hadamard transform of rows: bit for bit the CPU's, which takes the butterflies of a power of two, then the small
// matrix beside it, and then the factor.

namespace tacit {

// Of row `x` of the grid, which has N numbers and is kept in `row`. The small matrix is of order ORDER; `signs` tells where it is
// negative.
template <int ORDER, int N, class S, class X, class T>
TACIT_FN void hadamard(S signs, X x, TACIT_DEVICE T* out, float factor, Place at, u32 threads, TACIT_GROUP float* row) {
  enum { POWER = N / ORDER };
  const u64 start = (u64)at.x * N;
  for (u32 i = at.id; i < (u32)N; i += threads) row[i] = to_float(x[start + i]);
  TACIT_BARRIER();
  for (u32 apart = 1; apart < (u32)POWER; apart *= 2) {
    for (u32 pair = at.id; pair < (u32)(N / 2); pair += threads) {
      const u32 low = pair / apart * 2 * apart + pair % apart;
      const float a = row[low], b = row[low + apart];
      row[low] = exact_add(a, b);
      row[low + apart] = exact_add(a, -b);
    }
    TACIT_BARRIER();
  }
  for (u32 i = at.id; i < (u32)N; i += threads) {
    float sum = row[i];
    if (ORDER > 1) {
      sum = 0.0f;
      for (u32 j = 0; j < (u32)ORDER; ++j) {
        const float number = row[j * POWER + i % POWER];
        sum = exact_add(sum, signs.is_negative(i / POWER * ORDER + j) ? -number : number);
      }
    }
    out[start + i] = Round<T>::from(exact_mul(sum, factor));
  }
}

}  // namespace tacit
