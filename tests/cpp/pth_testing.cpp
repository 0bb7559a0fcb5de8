#include "pth_testing.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "pth/pth.h"
#include "pth/zip.h"

namespace op_tools::testing {
namespace {

// Tensors of more elements are not compared element by element: a stride of 0 makes huge ones from
// a few bytes.
constexpr int64_t kMaxCompared = 1 << 20;

bool same_items(const Values& a, const Values& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), same_value);
}

bool same_dense_bytes(const at::Tensor& a, const at::Tensor& b) {
  const int64_t numel = std::min(a.numel(), kMaxCompared);
  const size_t itemsize = a.itemsize();
  const auto* a_data = static_cast<const char*>(a.const_data_ptr());
  const auto* b_data = static_cast<const char*>(b.const_data_ptr());
  std::vector<int64_t> index(static_cast<size_t>(a.dim()), 0);
  for (int64_t i = 0; i < numel; ++i) {
    int64_t at = 0;
    for (size_t d = 0; d < index.size(); ++d) at += index[d] * a.strides()[d];
    const size_t byte = static_cast<size_t>(at) * itemsize;
    if (std::memcmp(a_data + byte, b_data + byte, itemsize) != 0) return false;
    for (size_t d = index.size(); d-- > 0;) {
      if (++index[d] < a.sizes()[d]) break;
      index[d] = 0;
    }
  }
  return true;
}

bool same_tensor(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.layout() != b.layout() || a.sizes() != b.sizes() ||
      a.requires_grad() != b.requires_grad())
    return false;
  if (a.layout() != at::kStrided) {
    // to_dense of a hostile size would be our own out-of-memory.
    return a.numel() > kMaxCompared || at::equal(a.detach().to_dense(), b.detach().to_dense());
  }
  return a.strides() == b.strides() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg() && same_dense_bytes(a, b);
}

bool same(const None&, const None&) {
  return true;
}
bool same(const Ellipsis&, const Ellipsis&) {
  return true;
}
bool same(double a, double b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}
bool same(const c10::complex<double>& a, const c10::complex<double>& b) {
  return same(a.real(), b.real()) && same(a.imag(), b.imag());
}
bool same(const at::Tensor& a, const at::Tensor& b) {
  return same_tensor(a, b);
}
bool same(const Size& a, const Size& b) {
  return a.sizes == b.sizes;
}
bool same(const Bytes& a, const Bytes& b) {
  return a.bytes == b.bytes;
}
bool same(const Slice& a, const Slice& b) {
  return same_items(*a.items, *b.items);
}
bool same(const List& a, const List& b) {
  return same_items(*a.items, *b.items);
}
bool same(const Tuple& a, const Tuple& b) {
  return same_items(*a.items, *b.items);
}
bool same(const Set& a, const Set& b) {
  return same_items(*a.items, *b.items);
}
bool same(const NamedTuple& a, const NamedTuple& b) {
  return a.type == b.type && same_items(*a.items, *b.items);
}
bool same(const Dict& a, const Dict& b) {
  return a.items->size() == b.items->size() &&
         std::equal(a.items->begin(), a.items->end(), b.items->begin(), [](const auto& x, const auto& y) {
           return same_value(x.first, y.first) && same_value(x.second, y.second);
         });
}
bool same(const Generator& a, const Generator& b) {
  return a.device == b.device && a.state.defined() == b.state.defined() &&
         (!a.state.defined() || same_tensor(a.state, b.state));
}
bool same(const Unsupported& a, const Unsupported& b) {
  return a.type == b.type && a.why == b.why;
}
template <class T>
bool same(const T& a, const T& b) {
  return a == b;
}

template <class T>
void overwrite(std::string& bytes, size_t at, T value) {
  if (at + sizeof value <= bytes.size()) std::memcpy(&bytes[at], &value, sizeof value);
}

// Sets the CRC of every entry, in its local header and in the directory, to that of the bytes it
// now has.
void repair_crcs(std::string& bytes) {
  const MemorySource source(bytes);
  std::vector<ZipEntry> entries;
  try {
    entries = read_zip_directory(source);
  } catch (const Error&) {
    return;
  }
  for (const auto& entry : entries) {
    try {
      const uint64_t at = payload_position(source, entry);
      const uint32_t crc = crc32_of(std::string_view(bytes).substr(at, entry.size));
      const size_t directory = bytes.rfind(entry.name);
      overwrite(bytes, entry.header_position + 14, crc);
      if (directory != std::string::npos && directory >= 30) overwrite(bytes, directory - 30, crc);
    } catch (const Error&) {
      continue;
    }
  }
}

}  // namespace

std::string encode(const Value& value) {
  const EncodedPth encoded(value);
  std::string bytes;
  for (const auto& piece : encoded.pieces()) bytes.append(piece.data, piece.size);
  return bytes;
}

std::string make_archive(std::string_view pickle, const std::vector<std::pair<std::string, std::string>>& records) {
  std::string bytes;
  ZipDirectory directory;
  const auto add = [&](const std::string& name, std::string_view payload) {
    const uint32_t crc = crc32_of(payload);
    directory.add(name, payload.size(), crc, bytes.size());
    append_local_header(bytes, name, payload.size(), crc, bytes.size());
    bytes += payload;
  };
  add("archive/data.pkl", pickle);
  for (const auto& [name, payload] : records) add("archive/" + name, payload);
  directory.append_to(bytes, bytes.size());
  return bytes;
}

bool same_value(const Value& a, const Value& b) {
  if (a.index() != b.index()) return false;
  return std::visit(
      [&b](const auto& alternative) {
        return same(alternative, std::get<std::decay_t<decltype(alternative)>>(b.variant()));
      },
      a.variant());
}

std::vector<Value> sample_values() {
  const auto a = at::arange(24, at::kFloat);
  const auto leaf = at::ones({2, 3}).set_requires_grad(true);
  const auto slice = Slice{std::make_shared<const Values>(Values{1, None{}, a.select(0, 2)})};
  Values many;
  for (int i = 0; i < 40; ++i) many.push_back(at::full({2}, i));
  return {
      make_dict(
          {{"name", "torch.Tensor.add"}, {"args", make_tuple({a, leaf, a})}, {"kwargs", make_dict({{"alpha", 2}})}}),
      make_list({0, 300, -5, int64_t{1} << 40, 0.5, true, false, None{}, "text", c10::complex<double>(1, -2)}),
      make_tuple({a.view({4, 6}).t(), a.slice(0, 2, 20, 3), a.select(0, 5), at::ones({3, 1}).expand({3, 4})}),
      make_tuple({a, a.view(at::kInt), a.view(at::kByte)}),
      make_tuple(
          {at::kBFloat16, c10::Device("cuda:1"), at::kSparseCsr, at::MemoryFormat::ChannelsLast, at::kPerTensorAffine}),
      make_tuple({slice, Ellipsis{}, Size{{2, 3}}, Bytes{std::string("a\0\xff", 3)}}),
      make_list({Set{std::make_shared<const Values>(Values{1, 2})}, make_dict({{3, make_list({make_tuple({})})}}),
                 make_dict({})}),
      make_tuple({at::eye(3).to_sparse(), at::eye(3).to_sparse_csr(), at::eye(4).to_sparse_bsr({2, 2})}),
      make_tuple({at::full({3}, c10::complex<double>(1, 2), at::kComplexFloat).conj(),
                  at::ones({3}).to(at::kFloat8_e5m2), at::zeros({0, 3}), at::full({}, 7, at::kLong)}),
      make_tuple({Generator{at::kCPU, at::arange(9, at::kByte)}, Unsupported{"function", "has no form"}}),
      make_list(std::move(many)),
      at::arange(5000, at::kFloat),
  };
}

std::string mutate(std::string_view bytes, std::mt19937_64& random, bool repair) {
  std::string mutant(bytes);
  const auto below = [&random](size_t limit) { return limit == 0 ? size_t{0} : static_cast<size_t>(random() % limit); };
  const size_t changes = 1 + below(3);
  for (size_t i = 0; i < changes && !mutant.empty(); ++i) {
    // data.pkl comes first: with right CRCs, that is where damage matters.
    const size_t at = below(repair ? std::min<size_t>(mutant.size(), 1000) : mutant.size());
    const size_t length = std::min<size_t>(1 + below(below(4) == 0 ? 200 : 8), mutant.size() - at);
    switch (below(8)) {
      case 0:
      case 1:
      case 2:
        mutant[at] = static_cast<char>(mutant[at] ^ (1 << below(8)));
        break;
      case 3:
        mutant[at] = static_cast<char>(random());
        break;
      case 4: {
        constexpr uint64_t kHuge[] = {0, ~uint64_t{0}, 0x7fffffffffffffff, 0xffffffff, 0x80000000, 0xffff, 1};
        if (below(2) == 0) {
          overwrite(mutant, at, kHuge[below(std::size(kHuge))]);
        } else {
          overwrite(mutant, at, static_cast<uint32_t>(kHuge[below(std::size(kHuge))]));
        }
        break;
      }
      case 5:
        mutant.insert(below(mutant.size()), mutant.substr(at, length));
        break;
      case 6: {
        const size_t other = below(mutant.size() - length + 1);
        std::swap_ranges(
            mutant.begin() + static_cast<std::ptrdiff_t>(at),
            mutant.begin() + static_cast<std::ptrdiff_t>(at + std::min(length, at > other ? at - other : other - at)),
            mutant.begin() + static_cast<std::ptrdiff_t>(other));
        break;
      }
      default:
        if (below(2) == 0) {
          mutant.resize(at);
        } else {
          mutant.erase(at, length);
        }
    }
  }
  if (repair) repair_crcs(mutant);
  return mutant;
}

}  // namespace op_tools::testing
