-- Configurations: which tile shapes a kernel can take for a head dim, and which to try first. A
-- kernel's file in lua/architectures says what its template allows and what a tile costs; the
-- search and the ranking are here. docs/configurations.md has the estimate and what was measured.
--
-- kernel = {
--   axes     {{"consumers", {3, 2}}, {"tile_kv", {128, 112, ...}}}: values that are combined
--   complete function(c): fills in what follows from them, `tile_q` and `tile_kv` at least; false
--            and a reason where it does not exist (registers, shared memory); `rows` where they
--            are several heads' queries: the estimate counts them as queries of one, so that heads
--            in groups get the tiles of those that are not
--   prefers  function(c): whether it comes first whatever the estimate says, since it was measured;
--            absent: none does
--   cost     function(c) -> cycles of a multiprocessor, all blocks on it together:
--              products      tensor cores, of a tile
--              shared        bytes through shared memory, at 128 a cycle, of a tile
--              loads         the copy engine's, of a tile; absent: it is no limit
--              arithmetic    exponentials and what goes with them, of a tile
--              groups        warps or warpgroups that take turns at these
--              tile, item    what neither hides: of a tile; of a query tile, once
-- }
local configurations = {}

-- Lengths of the estimate, queries and keys. A kernel serves all lengths, so each counts alike.
local LENGTHS = { { 512, 512 }, { 1024, 1024 }, { 4096, 4096 }, { 16384, 16384 } }

-- Scores of a tile of 128 x 128: the unit of estimates.
local UNIT = 128 * 128

-- Of the shorter of two works, how much a group of several leaves uncovered. Fitted: see the page.
local UNCOVERED = 1.2

-- What a model, a tuning file and `rota tune` call a tiling: rows of queries by keys. A tiling may
-- bring a `name` of its own, where tile_q does not tell.
function configurations.name(tiling)
  return tiling.name or string.format("%dx%d", tiling.tile_q, tiling.tile_kv)
end

-- Cycles of a tile. Groups hide all but a share of the shorter work behind the longer one: while
-- one multiplies, the others compute; the more there are, the less is left.
local function tile_cycles(cost)
  local moved = math.max(cost.products, cost.shared, cost.loads or 0)
  local longer, shorter = math.max(moved, cost.arithmetic), math.min(moved, cost.arithmetic)
  return longer + math.min(1, UNCOVERED / cost.groups) * shorter + cost.tile
end

-- Sum of floor((a * i + b) / m) over i = 0 .. n - 1, none of them negative: as Euclid's algorithm
-- goes, so that long sequences take no longer.
local function floor_sum(n, m, a, b)
  local sum = 0
  while n > 0 do
    sum = sum + n * (n - 1) // 2 * (a // m) + n * (b // m)
    a, b = a % m, b % m
    local top = a * n + b
    n, m, a, b = top // m, a, m, top % m
  end
  return sum
end

-- Query tiles of a sequence, and their tiles, with a full mask or a causal one. Under that one the
-- last query tile has all keys, each before it `rows` fewer, and the first perhaps none.
local function count(c, n_q, n_k, causal)
  local rows, tile = c.rows or c.tile_q, c.tile_kv
  local items, all = (n_q + rows - 1) // rows, (n_k + tile - 1) // tile
  if not causal or items == 0 then return items, items * all end
  local shift = n_k - n_q -- keys of query tile i, from 1: i * rows + shift
  local first = math.max(1, -shift // rows + 1)
  local between = math.max(0, items - first)
  return items, all + floor_sum(between, tile, rows, math.max(0, first * rows + shift + tile - 1))
end

-- Scores that a causal mask asks for.
local function triangle(n_q, n_k)
  if n_k >= n_q then return n_q * (n_k - n_q) + n_q * (n_q + 1) / 2 end
  return n_k * (n_k + 1) / 2
end

-- Cycles per 128 x 128 scores that are asked for: the mean over lengths, with a mask of full and
-- causal. Tiles beyond the diagonal or the sequence's end are computed in vain, so they count.
local function estimate(c, cost, has_mask, lengths)
  local of_tile, sum, cases = tile_cycles(cost), 0.0, 0
  for _, length in ipairs(lengths) do
    local n_q, n_k = length[1], length[2]
    for causal = 0, has_mask and 1 or 0 do
      local items, tiles = count(c, n_q, n_k, causal == 1)
      local asked = math.max(1, causal == 1 and triangle(n_q, n_k) or n_q * n_k)
      sum = sum + (tiles * of_tile + items * cost.item) * UNIT / asked
      cases = cases + 1
    end
  end
  return sum / cases
end

-- All combinations, the first axis slowest.
local function combine(axes)
  local list = { {} }
  for _, axis in ipairs(axes) do
    local name, values, longer = axis[1], axis[2], {}
    for _, c in ipairs(list) do
      for _, x in ipairs(values) do
        local copy = { [name] = x }
        for field, y in pairs(c) do copy[field] = y end
        longer[#longer + 1] = copy
      end
    end
    list = longer
  end
  return list
end

-- Preferred ones, then by the estimate, then in the order of the axes.
local function precedes(a, b)
  if a.preferred ~= b.preferred then return a.preferred end
  if a.estimate ~= b.estimate then return a.estimate < b.estimate end
  return a.at < b.at
end

-- The configurations that exist, best first, each with its `estimate`, and of those with the same
-- tiles the best; or nil and the reason why the last one does not.
-- request = {spec, lengths = {{n_q, n_k}, ...} or nil: what the estimate is for}
function configurations.search(kernel, request)
  local all, reason = {}, nil
  local has_mask, lengths = request.spec.has_mask, request.lengths or LENGTHS
  for at, c in ipairs(combine(kernel.axes)) do
    local exists, problem = kernel.complete(c)
    if exists then
      c.at, c.estimate = at, estimate(c, kernel.cost(c), has_mask, lengths)
      c.preferred = kernel.prefers ~= nil and kernel.prefers(c)
      all[#all + 1] = c
    else
      reason = problem
    end
  end
  table.sort(all, precedes)
  local list, seen = {}, {}
  for _, c in ipairs(all) do
    local name = configurations.name(c)
    if not seen[name] then list[#list + 1], seen[name] = c, true end
  end
  if #list == 0 then return nil, reason end
  return list
end

-- The one that a request names, out of a ranked list of tilings; "auto": the first. Nil if there is
-- none.
function configurations.choose(list, wanted)
  if not wanted or wanted == "auto" or wanted == "" then return list[1] end
  for _, tiling in ipairs(list) do
    if configurations.name(tiling) == wanted then return tiling end
  end
end

return configurations
