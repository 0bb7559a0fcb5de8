// Writes a .pth file per kind of value into the folder that it is given; with --rewrite, reads
// the .pth files there. tests/python/test_pth_format.py loads them with torch.load and checks the values that
// arrive: the values here and the expectations there belong together.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>

#include "base/error.h"
#include "pth/pth.h"

namespace {

using namespace op_tools;

std::string folder;

void save_to(const std::string& path, const Value& value) {
  const EncodedPth encoded(value);
  std::ofstream file(path, std::ios::binary);
  file.exceptions(std::ios::badbit | std::ios::failbit);
  for (const auto& piece : encoded.pieces()) file.write(piece.data, static_cast<std::streamsize>(piece.size));
}

void save(const std::string& name, const Value& value) {
  save_to(folder + "/" + name + ".pth", value);
}

Value slice(Values parts) {
  return Slice{std::make_shared<const Values>(std::move(parts))};
}

void save_plain_values() {
  const int64_t bit = 1;
  save("none", None{});
  save("ints",
       make_list({0, 255, 256, 65535, 65536, -1, int64_t{std::numeric_limits<int32_t>::min()}, bit << 31, -(bit << 33),
                  bit << 40, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()}));
  save("scalars", make_tuple({true, false, 1.5, -INFINITY, c10::complex<double>(1, -2), "h\xc3\xa9", ""}));
  save("odd_texts", make_dict({{"bad", std::string("a\xff\xfe")},
                               {"surrogate", std::string("\xed\xb2\x80")},
                               {std::string("\xc3"), std::string("a\0b", 3)}}));
  save("enums", make_tuple({at::kFloat, at::kBFloat16, at::kComplexHalf, at::kFloat8_e4m3fn, at::kUInt16,
                            c10::Device("cuda:1"), c10::Device("cpu"), c10::Device(c10::kPrivateUse1, 0), at::kStrided,
                            at::kSparseBsr, at::kPerTensorAffine}));
  save("tagged", make_list({at::MemoryFormat::ChannelsLast, slice({1, None{}, 2}), Ellipsis{},
                            Generator{at::kCPU, at::arange(3, at::kByte)}, Unsupported{"function", "has no form"}}));
  save("size", make_list({Size{{2, 3}}, Size{{}}}));
  save("bytes", make_list({Bytes{std::string("a\0\xff", 3)}, Bytes{}}));
  save("set", Set{std::make_shared<const Values>(Values{1, 2})});
  save("containers", make_dict({{"l", make_list({})},
                                {"t", make_tuple({})},
                                {"d", make_dict({})},
                                {7, "seven"},
                                {"nest", make_tuple({make_list({make_tuple({1}), make_dict({{3, "x"}})})})}}));
  save("named",
       NamedTuple{std::make_shared<const Values>(Values{at::ones(2), at::arange(2)}), "torch.return_types.max"});
}

// Torch has this dtype since 2.8.
template <typename Dtype = at::ScalarType>
void add_float4(Values& dtypes) {
  if constexpr (requires { Dtype::Float4_e2m1fn_x2; }) {
    constexpr Dtype kTwoNumbers = Dtype::Float4_e2m1fn_x2;
    dtypes.push_back(make_tuple({kTwoNumbers, at::full({3}, 0x21, at::kByte).view(kTwoNumbers)}));
  }
}

void save_tensors() {
  const auto a = at::arange(16, at::kFloat);
  const auto square = a.view({4, 4});
  save("strides", make_tuple({square.t(), a.slice(0, 2, 10, 3), a.select(0, 5), at::ones({3, 1}).expand({3, 4}),
                              at::empty({0, 3}), at::full({}, 2.5, at::kDouble)}));
  save("aliases", make_tuple({a, a.slice(0, 4, 8), a, a.alias()}));
  save("dtype_aliases", make_tuple({a, a.view(at::kInt), a.view(at::kByte), a.slice(0, 4, 8).view(at::kDouble)}));
  Values dtypes;
  for (const auto dtype : {at::kFloat,
                           at::kDouble,
                           at::kHalf,
                           at::kBFloat16,
                           at::kByte,
                           at::kChar,
                           at::kShort,
                           at::kInt,
                           at::kLong,
                           at::kUInt16,
                           at::kUInt32,
                           at::kUInt64,
                           at::kBool,
                           at::kComplexHalf,
                           at::kComplexFloat,
                           at::kComplexDouble,
                           at::kFloat8_e4m3fn,
                           at::kFloat8_e5m2,
                           at::kFloat8_e4m3fnuz,
                           at::kFloat8_e5m2fnuz,
                           at::kFloat8_e8m0fnu})
    dtypes.push_back(make_tuple({dtype, at::ones({3}, at::kFloat).to(dtype)}));
  add_float4(dtypes);
  save("dtypes", make_list(std::move(dtypes)));
  const auto leaf = at::ones({2}).set_requires_grad(true);
  save("requires_grad", make_tuple({leaf, leaf.mul(2), at::ones({2})}));
  const auto large = at::zeros({1 << 20}).fill_(3);
  save("small_view", make_tuple({large.slice(0, 1000, 1010), large.slice(0, 1005, 1020, 2)}));
  const auto c = at::full({3}, c10::complex<double>(1, 2), at::kComplexFloat);
  save("conj_neg", make_tuple({c.conj(), at::imag(c.conj())}));
  const auto sparse_leaf = at::eye(3).to_sparse().set_requires_grad(true);
  save("sparse",
       make_dict({{"coo", at::eye(3).to_sparse()},
                  {"uncoalesced", at::sparse_coo_tensor(at::zeros({1, 2}, at::kLong), at::ones({2, 3}), {3, 3})},
                  {"csr", at::eye(3).to_sparse_csr()},
                  {"csc", at::eye(3).to_sparse_csc()},
                  {"bsr", at::eye(4).to_sparse_bsr({2, 2})},
                  {"bsc", at::eye(4).to_sparse_bsc({2, 2})},
                  {"leaf", sparse_leaf},
                  {"same", sparse_leaf}}));
  Values many;
  for (int i = 0; i < 400; ++i) many.push_back(at::full({2}, i));
  save("many", make_list(std::move(many)));
  save("large", make_tuple({at::arange(1 << 20, at::kFloat), at::arange(5)}));
}

// Reads each *.pth file of the folder and writes it again beside it as *.pth.again, or *.pth.error
// with the reason.
void rewrite_all() {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string path = entry.path().string();
    if (entry.path().extension() != ".pth") continue;
    try {
      save_to(path + ".again", read_pth(path));
    } catch (const Error& error) {
      std::ofstream(path + ".error") << error.what();
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && !(argc == 3 && std::string_view(argv[2]) == "--rewrite")) {
    std::cerr << "usage: write_sample_pth FOLDER [--rewrite]\n";
    return 64;
  }
  folder = argv[1];
  if (argc == 3) {
    rewrite_all();
    return 0;
  }
  save_plain_values();
  save_tensors();
  return 0;
}
