-- Grants a part of a quota to a gateway. One call for each claim.
--
-- KEYS[1]  hash of the period of a quota. `all`: granted to and used by all gateways, time of the last sweep.
--          Field of a gateway: granted to and used by it, time of its last claim.
-- KEYS[2]  time since which the server has its data.
-- ARGV     gateway, used, held, wanted, limit, end of the period, 1 if `used` can fall
-- Returns  granted to the gateway, used by it, granted to all, used by all, 1 while nothing is granted because the
--          gateways of a server without data have not stated yet what they have used, KEYS[2]
local SETTLING_SECONDS, DEAD_SECONDS, SWEEP_SECONDS = 10, 30, 10

local function entry(text)
  local granted, used, at = string.match(text or '', '^(%d+) (%d+) (%d+)$')
  return tonumber(granted or 0), tonumber(used or 0), tonumber(at or 0)
end

local function text(granted, used, at)
  return string.format('%.0f %.0f %.0f', granted, used, at)
end

local gateway = ARGV[1]
local stated, held, wanted = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local limit, ends_at, is_gauge = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7] == '1'
local now = tonumber(redis.call('TIME')[1])

local born = tonumber(redis.call('GET', KEYS[2]) or 0)
if born == 0 then
  born = now
  redis.call('SET', KEYS[2], now)
end

local stored = redis.call('HMGET', KEYS[1], 'all', gateway)
local granted, used, swept = entry(stored[1] or nil)
local own_granted, own_used = entry(stored[2] or nil)

-- What the gateway states wins over what is stored, and lost data comes back.
if not is_gauge then
  stated = math.max(stated, own_used)
end
used = used - own_used + stated
local base = math.max(own_granted, held, stated)
granted = granted - own_granted + base

-- Gateways that end without returning their grants. The clock is set back by a failover to a slower server.
local is_swept = now >= swept and now < swept + SWEEP_SECONDS
if limit - granted < wanted - base and not is_swept then
  local all = redis.call('HGETALL', KEYS[1])
  for index = 1, #all, 2 do
    local name = all[index]
    local its_granted, its_used, at = entry(all[index + 1])
    if name ~= 'all' and name ~= gateway and now > at + DEAD_SECONDS then
      local kept = is_gauge and 0 or its_used
      granted = granted - its_granted + kept
      used = used - its_used + kept
      if kept == 0 then
        redis.call('HDEL', KEYS[1], name)
      elseif its_granted > kept then
        redis.call('HSET', KEYS[1], name, text(kept, kept, at))
      end
    end
  end
  swept = now
end

local is_settling = now >= born and now < born + SETTLING_SECONDS
local free = is_settling and 0 or math.max(0, limit - granted)
local grant = math.max(stated, math.min(wanted, base + free))
granted = granted - base + grant

redis.call('HSET', KEYS[1], 'all', text(granted, used, swept), gateway, text(grant, stated, now))
-- A gateway whose clock is slow must not remove what others share.
redis.call('EXPIREAT', KEYS[1], math.max(ends_at, now) + 60)
return { grant, stated, granted, used, is_settling and 1 or 0, born }
