// Shared by test_pth.cpp and tests/fuzz/fuzz_pth.cpp: sample trees, their bytes, deep comparison,
// and a mutator that damages files the same way for the same seed.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensor/value.h"

namespace op_tools::testing {

std::string encode(const Value& value);
// A zip as torch.save writes it, around any pickle and records; CRCs are right.
std::string make_archive(std::string_view pickle, const std::vector<std::pair<std::string, std::string>>& records = {});

// Equal in kinds, numbers (bit for bit), and tensors with dtype, sizes, strides, bits and bytes.
// Reads every element, so it also finds a tensor that reaches outside its memory.
bool same_value(const Value& a, const Value& b);

// A dozen trees that use every opcode of the writer.
std::vector<Value> sample_values();

// A damaged copy of `bytes`: flipped bits, cuts, copied, swapped and removed stretches, huge
// numbers. With `repair`, the CRCs of the entries are made right again where the directory can
// still be read, so that the damage gets past the CRC check to the pickle machine.
std::string mutate(std::string_view bytes, std::mt19937_64& random, bool repair);

}  // namespace op_tools::testing
