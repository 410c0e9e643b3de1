-- Schedules: in which order chains (kv tiles) start, and so in which order a query tile's dQ
-- partials are added, and in which order a chain visits its query tiles. Each is deterministic
-- and free of deadlock; they differ in who waits.
local schedules = {}

schedules.rules = {
  ascending = {
    about = "chains and visits from first to last",
    source = "the deterministic mode of FlashAttention-2 and -3",
    chains = "ascending",
    visits = "ascending",
  },
  descending = {
    about = "chains from first to last, each visiting its query tiles from the last to the first",
    source = "DASH, arXiv 2601.21824: for causal masks, where every chain has the last query tile",
    chains = "ascending",
    visits = "descending",
  },
  shortest_first = {
    about = "chains from last to first, visits from first to last: under a causal mask each chain "
      .. "begins at its diagonal tile, to which it is the first to add, and nobody waits",
    source = "FlashAttention-3's later causal order (shortest chain first)",
    chains = "descending",
    visits = "ascending",
  },
}

-- The schedule for "auto". Only `ordered` waits at all; elsewhere the order of the work decides
-- nothing but taste. Without a mask the first order is as good as its mirror image, so one
-- answer serves all masks.
function schedules.auto(algorithm)
  if algorithm == "ordered" then return "shortest_first" end
  return "ascending"
end

return schedules
