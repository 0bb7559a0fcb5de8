#include "tensor/strided_elements.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

namespace op_tools {
namespace {

template <class T>
void gather(const char* from, int64_t stride, int64_t n, char* to) {
  const T* const elements = reinterpret_cast<const T*>(from);
  T* const gathered = reinterpret_cast<T*>(to);
  for (int64_t i = 0; i < n; ++i) gathered[i] = elements[i * stride];
}

// Of a transposed matrix: `rows` rows, whose elements lie side by side, column by column. So a line of the cache is
// fetched once for up to eight rows.
template <class T>
void gather_rows(const char* from, int64_t stride, int64_t rows, int64_t columns, char* to) {
  constexpr int64_t kAtOnce = 8;
  const T* const elements = reinterpret_cast<const T*>(from);
  T* const gathered = reinterpret_cast<T*>(to);
  int64_t row = 0;
  for (; row + kAtOnce <= rows; row += kAtOnce) {
    for (int64_t column = 0; column < columns; ++column) {
      const T* const side_by_side = elements + column * stride + row;
      T* const place = gathered + row * columns + column;
#pragma GCC unroll 8
      for (int64_t i = 0; i < kAtOnce; ++i) place[i * columns] = side_by_side[i];
    }
  }
  for (int64_t column = 0; row < rows && column < columns; ++column) {
    for (int64_t i = row; i < rows; ++i) gathered[i * columns + column] = elements[column * stride + i];
  }
}

// Calls work(T()) with a type of `bytes` bytes.
template <class Work>
void with_element(int64_t bytes, const Work& work) {
  switch (bytes) {
    case 1:
      return work(uint8_t());
    case 2:
      return work(uint16_t());
    case 4:
      return work(uint32_t());
    case 8:
      return work(uint64_t());
    default:
      return work(std::array<uint64_t, 2>());
  }
}

template <int64_t kBytes>
void copy_rows_of(const char* from, int64_t pitch, int64_t rows, char* to) {
  for (; rows > 0; --rows, from += pitch, to += kBytes) std::memcpy(to, from, kBytes);
}

// `pitch`: bytes from row to row. Rows are often short (heads of an attention): less than a call of memcpy.
void copy_rows(const char* from, int64_t pitch, int64_t rows, int64_t bytes, char* to) {
  switch (bytes) {
    case 32:
      return copy_rows_of<32>(from, pitch, rows, to);
    case 64:
      return copy_rows_of<64>(from, pitch, rows, to);
    case 128:
      return copy_rows_of<128>(from, pitch, rows, to);
    case 256:
      return copy_rows_of<256>(from, pitch, rows, to);
    default:
      for (; rows > 0; --rows, from += pitch, to += bytes) std::memcpy(to, from, static_cast<size_t>(bytes));
  }
}

void copy_run(const char* from, int64_t stride, int64_t n, int64_t element, char* to) {
  if (stride == 1) return copy_rows(from, 0, 1, n * element, to);
  with_element(element, [&](auto kind) { gather<decltype(kind)>(from, stride, n, to); });
}

}  // namespace

StridedElements::StridedElements(const at::Tensor& tensor)
    : data_(static_cast<const char*>(tensor.const_data_ptr())), element_(static_cast<int64_t>(tensor.element_size())) {
  if (tensor.is_contiguous()) return;
  MergedDims dims(tensor.sizes(), tensor.strides());
  if (!dims.sizes.empty()) dims_.emplace(std::move(dims));
}

const void* StridedElements::copy(int64_t first, int64_t n, char* buffer) const {
  const std::vector<int64_t>&sizes = dims_->sizes, &strides = dims_->strides;
  const size_t last = sizes.size() - 1;
  std::vector<int64_t> index(sizes.size());
  int64_t place = 0, left = first;
  for (size_t i = last + 1; i-- > 0; left /= sizes[i]) {
    index[i] = left % sizes[i];
    place += index[i] * strides[i];
  }
  const bool in_runs = strides[last] == 1, by_rows = last > 0 && (in_runs || strides[last - 1] == 1);
  for (char* to = buffer;;) {
    const int64_t whole_rows =
        by_rows && index[last] == 0 ? std::min(n / sizes[last], sizes[last - 1] - index[last - 1]) : 0;
    const int64_t run = whole_rows > 1 ? whole_rows * sizes[last] : std::min(n, sizes[last] - index[last]);
    const char* const from = data_ + place * element_;
    if (whole_rows > 1 && in_runs) {
      copy_rows(from, strides[last - 1] * element_, whole_rows, sizes[last] * element_, to);
    } else if (whole_rows > 1) {
      with_element(element_,
                   [&](auto kind) { gather_rows<decltype(kind)>(from, strides[last], whole_rows, sizes[last], to); });
    } else {
      copy_run(from, strides[last], run, element_, to);
    }
    n -= run;
    if (n == 0) return buffer;
    to += run * element_;
    place -= index[last] * strides[last];
    index[last] = 0;
    int64_t rows = std::max<int64_t>(whole_rows, 1);
    for (size_t i = last; i-- > 0; rows = 1) {  // the next row
      place += rows * strides[i];
      index[i] += rows;
      if (index[i] < sizes[i]) break;
      place -= index[i] * strides[i];
      index[i] = 0;
    }
  }
}

}  // namespace op_tools
