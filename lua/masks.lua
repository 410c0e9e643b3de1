-- The masks a model script may name: one entry each. `value` is what the name means in a script;
-- `example` is an expression that uses it, which tests and benchmarks walk; `about` says what it
-- allows.
--
-- Where lengths differ, queries are aligned with the last keys: query q stands at key position q
-- + n_k - n_q.
local value = import "lua/value.lua"
local names = import "lua/names.lua"
local where, integer, fail = value.where, value.integer, names.fail

local masks = {}

masks.full = {
  about = "every key",
  example = "full",
  value = value.full,
}

local top_left = where "k <= q"

masks.causal = {
  about = "keys up to the query's own position; causal{align = \"top_left\"} counts positions "
    .. "from the start",
  example = "causal",
  value = where("k <= q + n_k - n_q", nil, function(options)
    local align = type(options) == "table" and options.align
    if align == "top_left" then return top_left end
    if align == "bottom_right" then return masks.causal.value end
    fail("causal takes {align = \"top_left\"} or {align = \"bottom_right\"}")
  end),
}

masks.window = {
  about = "window(left, right): keys from `left` before the query to `right` after it, both "
    .. "included; math.huge is no limit, a negative number moves a side across the query",
  example = "window(4096, 0)",
  value = function(left, right)
    local parts, parameters = {}, {}
    if left ~= math.huge then
      parts[1] = "q + n_k - n_q - k <= window_left"
      parameters.window_left = integer("window: left", left, -(1 << 30))
    end
    if right ~= math.huge then
      parts[#parts + 1] = "k - (q + n_k - n_q) <= window_right"
      parameters.window_right = integer("window: right", right, -(1 << 30))
    end
    if #parts == 0 then return value.full end
    return (where(table.concat(parts, " and "), parameters))
  end,
}

masks.sinks = {
  about = "sinks(n): the first n keys, which every query keeps (attention sinks)",
  example = "causal & (window(64, 0) | sinks(4))",
  value = function(n) return (where("k < sinks", { sinks = integer("sinks", n, 0) })) end,
}

masks.prefix = {
  about = "prefix(n): the first n keys, seen in both directions (prefix LM: causal | prefix(n))",
  example = "causal | prefix(100)",
  value = function(n) return (where("k < prefix", { prefix = integer("prefix", n, 0) })) end,
}

masks.where = {
  about = "where(predicate, {parameters}): any predicate of q, k, h, b, n_q, n_k, named "
    .. "parameters and tensors",
  example = 'where("k <= q and q - k < reach", {reach = 300})',
  value = function(text, parameters) return (where(text, parameters)) end,
}

masks.chunk = {
  about = "chunk(n): keys of the query's own chunk of n positions",
  example = "causal & chunk(256)",
  value = function(n)
    return (where("(q + n_k - n_q) // chunk == k // chunk", { chunk = integer("chunk", n, 1) }))
  end,
}

masks.dilated = {
  about = "dilated(stride): every stride-th key, counted from the query's own position",
  example = "causal & dilated(4)",
  value = function(stride)
    local dilation = integer("dilated", stride, 1)
    return (where("(q + n_k - n_q - k) % dilation == 0", { dilation = dilation }))
  end,
}

masks.document = {
  about = "keys of the query's own document: int32 tensor document[b, i], i below max(n_q, n_k); "
    .. "the shorter of queries and keys is aligned with the end",
  example = "causal & document",
  value = where "document[b, q + max(n_k - n_q, 0)] == document[b, k + max(n_q - n_k, 0)]",
}

masks.blocks = {
  about = "blocks{tile_q = 128, tile_kv = 128}: a list of blocks, int32 tensor "
    .. "blocks[b, q // tile_q, k // tile_kv]; zero forbids a block",
  example = "blocks{tile_q = 128, tile_kv = 128}",
  value = function(options)
    if options ~= nil and (type(options) ~= "table" or value.kind(options) ~= "table") then
      fail("blocks takes {tile_q = 128, tile_kv = 128}")
    end
    local size = { tile_q = 128, tile_kv = 128 }
    for name, number in pairs(options or {}) do
      if size[name] == nil then
        fail("%s", names.unknown("option of blocks", tostring(name), names.sorted(size)))
      end
      size[name] = integer("blocks: " .. name, number, 1)
    end
    return (where(string.format("blocks[b, q // %d, k // %d] ~= 0", size.tile_q, size.tile_kv)))
  end,
}

return masks
