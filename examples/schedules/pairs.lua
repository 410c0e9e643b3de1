-- A schedule of one's own, for causal masks: lane i runs the i-th longest chain upwards from its
-- diagonal, then the i-th shortest downwards, so that all lanes take equally long.
local pairs_of_chains = {
  name = "pairs",
  about = "long chains climb, short ones descend, two to a lane",
  source = "docs/write-a-schedule.md",
  pattern = function(map, gang, costs)
    local half, top = (map.chains + 1) // 2, map.q_tiles - 1
    return {
      gang = half,
      lanes = function(chain)
        local lane = chain < half and chain or map.chains - 1 - chain
        return lane % gang -- there may be fewer workers than lanes
      end,
      visits = function(chain)
        if chain < half then return { { 0, top } } end
        return { { top, 0, -1 } }
      end,
    }
  end,
}

return rota.attention { head_dim = 64, heads = 8, mask = causal, schedule = pairs_of_chains }
