-- What GPUs move and compute at most, for the model of traffic (generator/traffic.h): round figures
-- from data sheets and published microbenchmarks, one GPU of each compute capability, as in
-- lua/architectures. The model ranks algorithms by them; it does not predict times.
--   tensor   dense bf16 with fp32 sums, TFLOP/s; fp32: without tensor cores
--   dram, l2 TB/s; shared: 128 bytes a cycle and multiprocessor, TB/s
-- H200: its data sheet; l2 is what ncu takes for the most that it sends to multiprocessors. Kernels
-- of this project were counted at 8.6 there (materialised, head dim 512), and a product of 8192^3
-- at 730 to 790 of the 989.
local rates = {}

local function gpu(tensor, fp32, dram, l2, multiprocessors, gigahertz)
  return {
    tensor = tensor,
    fp32 = fp32,
    dram = dram,
    l2 = l2,
    shared = 0.128 * multiprocessors * gigahertz,
  }
end

local known = {
  [80] = gpu(312, 19.5, 1.56, 4.5, 108, 1.41), -- A100
  [86] = gpu(71, 35.6, 0.94, 2.5, 82, 1.7), -- RTX 3090
  [87] = gpu(42, 5.3, 0.2, 0.6, 16, 1.3), -- Orin
  [89] = gpu(165, 82.6, 1.01, 5.0, 128, 2.52), -- RTX 4090
  [90] = gpu(989, 67, 4.8, 9.9, 132, 1.83), -- H200
  [100] = gpu(2250, 75, 8.0, 10.0, 148, 1.85), -- B200
  [120] = gpu(209, 105, 1.79, 6.0, 170, 2.41), -- RTX 5090
}

-- request = {sm = 90}. For a GPU that is not listed: the newest listed one that is older.
function rates.of(request)
  local best
  for sm in pairs(known) do
    if sm <= request.sm and (not best or sm > best) then best = sm end
  end
  return known[best or 80]
end

return rates
