-- A mask of one's own: every third key within reach, and always the first four.
local comb = where("k <= q and (q - k) % step == 0 and q - k < reach", { step = 3, reach = 600 })

return rota.attention {
  head_dim = 64,
  heads = 8,
  mask = comb | (sinks(4) & causal),
}
