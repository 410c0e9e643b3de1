-- The score functions a model script may name: one entry each, laid out as in lua/masks.lua. s
-- is the scaled score scale * (q . k). Scores compose from left to right: alibi >> softcap(30)
-- first adds the bias, then caps.
local value = import "lua/value.lua"
local score, number, integer = value.score, value.number, value.integer

local scores = {}

scores.score = {
  about = "score(text, {parameters}): any expression of s, q, k, h, b, n_q, n_k, named parameters "
    .. "and tensors",
  example = 'score("s + strength * (k - q)", {strength = 0.01})',
  value = function(text, parameters) return (score(text, parameters)) end,
}

scores.softcap = {
  about = "softcap(cap): cap * tanh(s / cap) keeps scores within (-cap, cap)",
  example = "softcap(30)",
  value = function(cap)
    return (score("cap * tanh(s / cap)", { cap = number("softcap", cap) }))
  end,
}

scores.alibi = {
  about = "a bias in proportion to the distance, by float tensor slope[h] (ALiBi, "
    .. "arXiv 2108.12409)",
  example = "alibi",
  value = score "s - slope[h] * abs(q + n_k - n_q - k)",
}

scores.relative_bias = {
  about = "relative_bias(offset): a bias per distance, float tensor bias[h, q - k + offset]; the "
    .. "index starts at 0, so offset is one less than the longest n_k, or more",
  example = "relative_bias(2047)",
  value = function(offset)
    return (score("s + bias[h, q - k + offset]", { offset = integer("relative_bias", offset, 0) }))
  end,
}

return scores
