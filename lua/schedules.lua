-- Schedules: who visits which query tile when, and in which order a query tile's dQ partials are
-- added. Each is deterministic and free of deadlock; they differ in who waits.
--
-- An entry, shipped or in a user's model script (docs/write-a-schedule.md):
--   about, source   what it does and where it comes from
--   order           "portable": chains wait for chains that start earlier only, and the gang has no
--                   say, so that any number of workers gives the same bits; "gang" (the default):
--                   the bits depend on the gang's size
--   options         name -> {default, least, most}: "shift:stagger=3"
--   batch_variant   true if the pattern looks at map.batch; then never chosen by "auto"
--   pattern         function(map, gang, costs, options) -> answer, see lua/pattern.lua
--   assignment      a name of generator/schedule.h's ASSIGNMENT_LIST, or function(batch) -> queues;
--                   "tickets" for portable schedules, "lanes" for others
--
-- kv tiles (= chains), query tiles, heads and lanes count from 0.
local schedules = {}

-- 0 .. n - 1, and backwards.
local function up(n)
  local list = {}
  for i = 1, n do list[i] = i - 1 end
  return list
end
local function down(n)
  local list = {}
  for i = 1, n do list[i] = n - i end
  return list
end

-- All of a chain's tiles, from the first or from the last.
local function forwards(map)
  local all = { { 0, map.q_tiles - 1 } }
  return function() return all end
end
local function backwards(map)
  local all = { { map.q_tiles - 1, 0, -1 } }
  return function() return all end
end

-- All chains, those with more tiles first.
local function longest_to_shortest(map)
  local list, count = up(map.chains), {}
  for chain = 0, map.chains - 1 do count[chain] = map.count(chain) end
  table.sort(list, function(a, b)
    if count[a] ~= count[b] then return count[a] > count[b] end
    return a < b
  end)
  return list
end

-- All tiles from `from` on, then those before it, as far as they lie in [low, high].
local function turned(from, low, high) return { { from, high }, { low, from - 1 } } end

-- First tile, from 0, of number `place` in flight: the distance that is asked for, or, where that
-- is too much, all as far apart as they can be, and not only by whole tiles.
local function place_of(options, tiles, flight, place)
  if options.stagger * flight <= tiles then return place * options.stagger end
  return place * tiles // flight
end

-- Whether each chain has all tiles from its first one to the last of all, and begins later than its
-- neighbour: a causal mask.
local function is_staircase(map)
  local before = -1
  for chain = 0, map.chains - 1 do
    local first = map.first(chain)
    if not first or first <= before or map.count(chain) ~= map.group * (map.q_tiles - first) then
      return false
    end
    before = first
  end
  return map.chains > 1
end

-- Whether each chain has all tiles.
local function is_full(map)
  for chain = 0, map.chains - 1 do
    if map.count(chain) ~= map.group * map.q_tiles then return false end
  end
  return true
end

-- All chains in tiers: those with more than half as many tiles as the longest, then those with more
-- than half as many as the longest that is left, and so on; each tier from last to first. Returns
-- them as they start, the tier of each, and how many are in the first.
local function in_tiers(map)
  local start, tiers, count = up(map.chains), {}, {}
  for chain = 0, map.chains - 1 do count[chain] = map.count(chain) end
  table.sort(start, function(a, b) return count[a] > count[b] or count[a] == count[b] and a > b end)
  local most, tier, top = count[start[1]], 0, 0
  for _, chain in ipairs(start) do
    if 2 * count[chain] <= most and count[chain] < most then
      most, tier = count[chain], tier + 1
    end
    tiers[chain], top = tier, top + (tier == 0 and 1 or 0)
  end
  table.sort(start, function(a, b)
    if tiers[a] ~= tiers[b] then return tiers[a] < tiers[b] end
    return a > b
  end)
  return start, tiers, top
end

-- The visits of a long chain and of a short one under `halves`. Long chains start at once, and the
-- next longer one has 2 tiles more a head: it comes to each tile 2 visits later if it begins on its
-- diagonal, and goes on 2 visits later, back from the last tile, in all other heads side by side.
-- So they end, and short ones start, as many visits apart as two heads have more: 2 a head. Of up
-- to 4 heads these go the same way, which lets them start early, too. Of more, heads side by side
-- go forwards as well, all but the last two: each brings the next chain 2 visits closer, up to 4,
-- and tiles are still in the L2 when it comes.
local function half_visits(map)
  local last, group = map.q_tiles - 1, map.group
  local first = { 0, last, 1, head = 0 }
  local function forwards_in(from, to) return { 0, last, 1, head = { from, to } } end
  local function back_in(from, to) return { last, 0, -1, head = { from, to } } end
  if group == 1 then return { first }, { first } end
  local long = { first, back_in(1, group - 1) }
  if group <= 4 then return long, long end
  return long, { first, forwards_in(1, group - 3), back_in(group - 2, group - 1) }
end

-- How many lanes a head has under symmetric_shift, with `beside` heads side by side; 0: as many
-- as fit if each lane has one pair of chains. Where more lanes would fill the gang, there are more,
-- and the longest chains have some to themselves; not where these lanes would be much longer.
local function lane_count(chains, gang, beside)
  local half = math.max((chains + 1) // 2, 1)
  if beside > 0 then return math.max(1, math.min(gang // beside, half)) end
  local together = gang // half
  if together == 0 then return gang end
  local lanes = gang // together
  local fills = gang % together == 0 and 10 * (2 * lanes - chains) <= chains
  return fills and lanes or half
end

-- Chains of symmetric_shift by the length, in blocks of two for each lane. The block of a chain:
-- its first chain and size, how many chains have a lane to themselves, how many are long, and the
-- first tile that all long ones have. The last block may be smaller, even with no short chains.
local function block_of(map, chain, lanes)
  local begin = chain // (2 * lanes) * 2 * lanes
  local size = math.min(2 * lanes, map.chains - begin)
  local alone = size > lanes and 2 * lanes - size or 0
  local long = math.min(size, lanes)
  local split = map.first(begin + math.min(long, size - 1)) or 0
  return {
    begin = begin, size = size, alone = alone, long = long,
    split = math.max(0, math.min(split, map.q_tiles - 1)),
  }
end

-- The visits of a long chain, that turns through the rectangle of tiles `split` to `last`, from
-- tile `from` on, and then climbs from its diagonal; or, without `from`, of a short one, that
-- descends from `last`. The heads of a group follow one another in each of these parts, so that
-- chains remain 2 visits apart in the rectangle. In the other parts they drift apart, since one has
-- 2 tiles more than the next: up or down, whichever keeps them closer together, so that tiles are
-- still in the L2 when the next chain comes.
local function lane_visits(group, last, split, from)
  local list = {}
  local function add(first, final, head)
    list[#list + 1] = { first, final, first <= final and 1 or -1, head = head }
  end
  if not from then
    for head = 0, group - 2 do add(0, last, head) end
    add(last, 0, group - 1)
    return list
  end
  for head = 0, group - 1 do add(head == 0 and from or split, last, head) end
  if from > split then add(split, from - 1, 0) end
  if split > 0 then
    add(0, split - 1, 0)
    for head = 1, group - 1 do add(split - 1, 0, head) end
  end
  return list
end

local stagger = { default = 2, least = 1, most = 64 }

schedules.rules = {
  ascending = {
    about = "chains and visits from first to last",
    source = "the deterministic mode of FlashAttention-2 and -3",
    order = "portable",
    assignment = "cyclic",
    pattern = function(map) return { start = up(map.chains), visits = forwards(map) } end,
  },
  descending = {
    about = "chains from first to last, each visiting its query tiles from the last to the first; "
      .. "heads dealt in pairs: who had a long chain gets a short one",
    source = "DASH, arXiv 2601.21824: for causal masks, where every chain has the last query tile",
    order = "portable",
    assignment = "lanes",
    pattern = function(map) return { start = up(map.chains), visits = backwards(map) } end,
  },
  shift = {
    about = "each chain begins `stagger` tiles after its neighbour and goes once round: nobody "
      .. "meets. With fewer query tiles than chains in flight several begin on one tile",
    source = "DASH, arXiv 2601.21824: optimal for full masks",
    options = { stagger = stagger },
    pattern = function(map, gang, _, options)
      local flight, tiles = math.min(gang, map.chains), math.max(map.q_tiles, 1)
      return {
        visits = function(chain)
          local from = place_of(options, tiles, flight, chain % flight)
          return turned(from % tiles, 0, tiles - 1)
        end,
      }
    end,
  },
  symmetric_shift = {
    about = "the longest chain and the shortest share a lane, so all lanes are equally long; "
      .. "long chains turn through the tiles that all of them have, then climb to their diagonal, "
      .. "short ones descend. Where workers would be left over, the longest chains have lanes of "
      .. "their own. With `beside` heads side by side lanes may have several such pairs",
    source = "DASH, arXiv 2601.21824: optimal for causal masks; lanes for all workers: Rota",
    options = { stagger = stagger, beside = { default = 0, least = 0, most = 1 << 20 } },
    pattern = function(map, gang, _, options)
      local last, lanes = map.q_tiles - 1, lane_count(map.chains, gang, options.beside)
      return {
        gang = lanes,
        lanes = function(chain)
          local block = block_of(map, chain, lanes)
          local i = chain - block.begin
          return i < block.long and i or block.size + block.alone - 1 - i
        end,
        visits = function(chain)
          local block = block_of(map, chain, lanes)
          local i, split, from = chain - block.begin, block.split, nil
          if i < block.alone then return { { 0, last, head = "all" } } end
          if i < block.long then
            local width, flight = math.max(last - split + 1, 1), block.long - block.alone
            from = split + place_of(options, width, flight, i - block.alone) % width
          end
          return lane_visits(map.group, last, split, from)
        end,
      }
    end,
  },
  shortest_first = {
    about = "chains from last to first, visits from first to last: under a causal mask each chain "
      .. "begins at its diagonal tile, to which it is the first to add, and nobody waits",
    source = "FlashAttention-3's later causal order (shortest chain first)",
    order = "portable",
    pattern = function(map) return { start = down(map.chains), visits = forwards(map) } end,
  },
  tiers = {
    about = "shortest_first in tiers: of all heads first the chains of more than half the length "
      .. "of the longest, then the longer half of the others, and so on, so that short ones level "
      .. "the workers at the end; where few are shorter, as under a window, these longest first",
    source = "Rota: list scheduling (Graham 1966) in rounds, docs/schedules.md",
    order = "portable",
    assignment = "mixed",
    pattern = function(map)
      local start, tiers, top = in_tiers(map)
      if 4 * top < 3 * map.chains then
        return { start = start, tiers = tiers, ranks = "start", visits = forwards(map) }
      end
      table.sort(start, function(a, b)
        if tiers[a] == 0 or tiers[b] == 0 then
          if tiers[a] == tiers[b] then return a > b end
          return tiers[a] == 0
        end
        if map.count(a) ~= map.count(b) then return map.count(a) > map.count(b) end
        return a < b
      end)
      for place = top + 1, #start do tiers[start[place]] = place - top end
      local upwards, downwards = forwards(map), backwards(map)
      return {
        start = start, tiers = tiers, ranks = "start", together = 2,
        visits = function(chain) return tiers[chain] == 0 and upwards() or downwards() end,
      }
    end,
  },
  longest_first = {
    about = "the longest chain of all heads first (or of `together` heads, then of as many more), "
      .. "so that the short ones fill the gaps at the end; visits from last to first, grouped "
      .. "heads side by side: who took one after another would come to the second before a longer "
      .. "chain that started earlier",
    source = "Graham's longest processing time first, on DASH's descending order",
    order = "portable",
    assignment = "longest",
    options = { together = { default = 0, least = 0, most = 1 << 20 } },
    pattern = function(map)
      local visits = { { map.q_tiles - 1, 0, -1, head = "all" } }
      return { start = longest_to_shortest(map), visits = function() return visits end }
    end,
  },
  halves = {
    about = "for grouped heads under causal masks: the longer half of a kv head's chains, from "
      .. "the shortest to the longest, two visits apart in every head, then the others from the "
      .. "longest to the shortest, each where one of the first has ended: all end at once",
    source = "Rota: DASH's pairs of a long and a short chain without lanes of their own",
    order = "portable",
    assignment = "longest",
    pattern = function(map)
      local list, start = longest_to_shortest(map), {}
      local half, is_long = (map.chains + 1) // 2, {}
      for i, chain in ipairs(list) do
        is_long[chain] = i <= half
        start[i <= half and half + 1 - i or i] = chain
      end
      local long, short = half_visits(map)
      return {
        start = start, abreast = math.max(half, 1),
        visits = function(chain) return is_long[chain] and long or short end,
      }
    end,
  },
  rotate = {
    about = "each chain turns within its own tiles, beginning `stagger` tiles further than its "
      .. "neighbour: shift for masks whose chains have different tiles",
    source = "shift, with each chain's own range in place of all query tiles",
    options = { stagger = stagger },
    pattern = function(map, gang, _, options)
      local flight = math.min(gang, map.chains)
      return {
        visits = function(chain)
          local low, high = map.first(chain), map.last(chain)
          if not low then return {} end
          local width = high - low + 1
          local step = math.max(1, math.min(options.stagger, width // flight))
          return turned(low + chain % flight * step % width, low, high)
        end,
      }
    end,
  },
  optimized = {
    about = "under a causal mask symmetric shift, which wastes nothing; else a list scheduler on "
      .. "the DAG: each lane goes round its chain's tiles and takes the next that is free; then "
      .. "`iterations` attempts at improvement (0: as many as a few million steps allow)",
    source = "DASH; list scheduling (Graham 1966) with the cost model of generator/dag.h",
    options = { iterations = { default = 0, least = 0, most = 4096 } },
    pattern = function(map, gang, costs, options)
      if is_staircase(map) then
        local choice = { stagger = 2, beside = 0 }
        return schedules.rules.symmetric_shift.pattern(map, gang, costs, choice)
      end
      local iterations = options.iterations
      if iterations == 0 then
        local visits = 0
        for chain = 0, map.chains - 1 do visits = visits + map.count(chain) end
        iterations = math.min(200, 10000 // math.max(visits, 1))
      end
      return map.optimize(iterations)
    end,
  },
}

-- Up to SHORT chains a sequence ends before a shift's chains have spread out, up to FEW there is
-- little for later tiers; up to GROUPED heads of a group were measured under halves.
local SHORT, FEW, GROUPED = 8, 5, 16

-- Whether so many chains begin on the first tile that their order counts for more than the others':
-- few queries of many keys.
local function has_many_full_chains(map)
  local full = 0
  for chain = 0, map.chains - 1 do full = full + (map.first(chain) == 0 and 1 or 0) end
  return full > map.chains * (map.group > 1 and 0.7 or 0.25)
end

-- Whether grouped heads under a causal mask are best visited in halves: of up to 8 chains of more
-- than 512 keys, and where the longer halves of 1, 2, 4, .. kv heads' chains fill the gang, since
-- models have so many heads.
local function suit_halves(map, gang)
  local half = (map.chains + 1) // 2
  local beside = gang // half
  if map.chains <= SHORT then return map.chains * map.tile_kv > 512 end
  return beside > 0 and beside & beside - 1 == 0 and 20 * half * beside >= 19 * gang
end

-- Of how many kv heads longest_first takes the longest chain first: few, or the L2 cannot hold
-- their query tiles, of which a large group has more; more where each has few chains, or query
-- tiles are small: kv tiles of 192 keys are those of head dims up to 64.
local function heads_together(map)
  local many = map.chains <= 2 * SHORT or map.tile_kv > 128
  return math.max((many and 64 or 32) // math.max(map.group, 4), 4)
end

-- Neighbouring chains that end on the same query tile, as {first, last}: under a causal mask within
-- documents those of one document.
local function blocks_of(map)
  local blocks = {}
  for chain = 0, map.chains - 1 do
    local block = blocks[#blocks]
    if block and map.last(chain) == map.last(block[2]) then
      block[2] = chain
    else
      blocks[#blocks + 1] = { chain, chain }
    end
  end
  return blocks
end

-- Whether blocks are of one length, longer than SHORT, and share no query tile.
local function are_even(map, blocks)
  local before = -1
  for _, block in ipairs(blocks) do
    local first = map.first(block[1])
    if not first or first <= before or block[2] - block[1] ~= blocks[1][2] - blocks[1][1] then
      return false
    end
    before = map.last(block[1])
  end
  return map.chains > SHORT * #blocks
end

-- Whether some are so long that they must not come last.
local function has_long_chains(map)
  local most, sum = 0, 0
  for chain = 0, map.chains - 1 do
    most, sum = math.max(most, map.count(chain)), sum + map.count(chain)
  end
  return most * map.chains > 8 * sum
end

-- symmetric_shift within each of the blocks, which have as many chains.
local function in_lanes(map, gang, blocks)
  local chains = blocks[1][2] + 1
  local half = (chains + 1) // 2
  local start, short, lanes, visits = {}, {}, {}, {}
  for number, block in ipairs(blocks) do
    local last, split = map.last(block[1]), map.first(block[1] + half)
    local width = last - split + 1
    for i = 0, chains - 1 do
      local chain = block[1] + i
      local from = split + place_of({ stagger = 2 }, width, half, i) % width
      if i < half then
        start[#start + 1] = chain
        visits[chain] = lane_visits(map.group, last, split, from)
      else
        short[#short + 1] = chain
        visits[chain] = lane_visits(map.group, last)
      end
      lanes[chain] = ((number - 1) * half + math.min(i, chains - 1 - i)) % gang
    end
  end
  table.move(short, 1, #short, #start + 1, start)
  return { gang = math.min(half * #blocks, gang), lanes = lanes, visits = visits, start = start }
end

schedules.rules.by_tiles = {
  about = "for masks that are evaluated: longest_first where few chains are much longer than "
    .. "others; tiers where documents have more than 5 chains on average, but with grouped heads "
    .. "symmetric_shift within documents that are equally long, of whole tiles; else "
    .. "shortest_first",
  source = "measured on Hopper kernels, docs/schedules.md; the DAG model",
  assignment = "stretches",
  pattern = function(map, gang, costs)
    local blocks, rules = blocks_of(map), schedules.rules
    if map.group > 1 and are_even(map, blocks) then return in_lanes(map, gang, blocks) end
    local rule = has_long_chains(map) and rules.longest_first
      or map.chains > FEW * #blocks and rules.tiers or rules.shortest_first
    local answer = rule.pattern(map, gang, costs)
    answer.ranks = "start"
    return answer
  end,
}

schedules.rules.by_length = {
  about = "shift from 9 chains on, or for causal masks from 6 chains on tiers, with grouped heads "
    .. "longest_first, `together` heads at once (0: 4 to 16), or halves, where these fill the gang "
    .. "or are few; else, and where many chains have all query tiles, shortest_first",
  source = "measured on Hopper kernels, docs/schedules.md",
  assignment = "mixed",
  options = { together = { default = 0, least = 0, most = 1 << 20 } },
  pattern = function(map, gang, costs, options)
    local rules = schedules.rules
    local function in_order(rule, together)
      local answer = rule.pattern(map, gang, costs)
      answer.ranks, answer.together = "start", together or answer.together
      return answer
    end
    if is_full(map) and map.chains > SHORT then
      return rules.shift.pattern(map, gang, costs, { stagger = 3 })
    end
    local is_causal = is_staircase(map)
    if map.group > 1 and map.group <= GROUPED and is_causal and suit_halves(map, gang) then
      return in_order(rules.halves)
    end
    local most = map.group == 1 and FEW or is_causal and 1 or SHORT
    local together = options.together > 0 and options.together or heads_together(map)
    if map.chains <= most or has_many_full_chains(map) then
      return in_order(rules.shortest_first, together)
    end
    if map.group == 1 then return in_order(rules.tiers) end
    return in_order(rules.longest_first, together)
  end,
}

-- The schedule for "auto". It may depend on the spec and on one sequence's lengths, but not on the
-- batch, whose size must not change bits. Only `ordered` waits at all; elsewhere the order of the
-- work decides nothing but taste. As measured on an H200 (backward_schedules_h200.csv,
-- schedules_hopper_h200.csv and schedules_portable_h200.csv in bench/results). Chains of a shift
-- begin two visits apart, which suits kv tiles twice as high as query tiles; where they are three
-- times as high, shifts lose on long sequences. Masks that are evaluated for every element make
-- visits long and unequal: the longest chains first.
-- request = {algorithm, architecture, tile_q, tile_kv, mask}; mask: generator/records.h's
-- mask_shape
function schedules.auto(request)
  if request.algorithm ~= "ordered" then return "ascending" end
  if request.architecture ~= "hopper" then
    return request.mask == "full" and "shortest_first" or "longest_first"
  end
  if request.mask == "other" then return "by_tiles" end
  if request.mask == "prefix" then return "by_length" end
  if request.mask ~= "full" then return "tiers" end
  return 2 * request.tile_q == request.tile_kv and "by_length" or "shortest_first"
end

return schedules
