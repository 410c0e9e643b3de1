-- Every NVIDIA GPU from sm_80 on, by mma.sync (bf16 and fp16), and plain arithmetic for fp32.
--
-- Tilings come as a list, the one to be preferred first. A tiling is a table: `template` (path of
-- the device code), integers, each of which becomes a constant of tiling.cuh (tile_q -> kTileQ),
-- and `launches` = {{entry, grid, threads, shared_bytes}, ...} in the order of execution; a grid is
-- a name of generator/tiling.h's GRID_LIST; perhaps a `name` (lua/configurations.lua). architecture
-- and algorithm are filled in by lua/policy.lua. What only sm_90 has: lua/architectures/hopper.lua.
local forward = import "lua/architectures/portable_forward.lua"
local backward = import "lua/architectures/portable_backward.lua"

local KB, MB = 1024, 1024 * 1024

-- Limits of one GPU of each compute capability, for requests without a device; from NVIDIA's
-- tuning guides and data sheets. With a device the runtime asks the driver instead.
local function limits(shared_per_sm, multiprocessors, l2_megabytes)
  return {
    shared_per_sm = shared_per_sm * KB,
    shared_per_block = (shared_per_sm - 1) * KB, -- one KB of each block's is the system's
    registers_per_sm = 65536,
    multiprocessors = multiprocessors,
    l2_bytes = l2_megabytes * MB,
  }
end

return {
  name = "portable",
  priority = 0,
  targets = {
    [80] = limits(164, 108, 40),  -- A100
    [86] = limits(100, 82, 6),    -- RTX 3090
    [87] = limits(164, 16, 4),    -- Orin
    [89] = limits(100, 128, 72),  -- RTX 4090
    [90] = limits(228, 132, 50),  -- H100, H200
    [100] = limits(228, 148, 126), -- B200
    [120] = limits(100, 170, 96), -- RTX 5090
  },
  serves = function(request)
    if request.target.sm < 80 then return false, "sm_80 or newer is needed" end
    if request.spec.bound == "spread" then return false, "no bound = \"spread\"" end
    return true
  end,
  tilings = function(request, algorithm)
    if algorithm == "forward" then return forward(request) end
    return backward(request, algorithm)
  end,
}
