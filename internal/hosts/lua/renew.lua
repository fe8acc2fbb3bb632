-- renew.lua extends the leases of permits in use. A permit that has lapsed is not restored.
--
-- KEYS  1 state of the host, see host.lua
-- ARGV  1 clock offset, ms   2 lease, ms; then credential and token of each permit

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[1])
local ends = string.format('%.0f', now + tonumber(ARGV[2]))
for i = 3, #ARGV, 2 do
  local permit = 't:' .. ARGV[i + 1]
  if (tonumber(redis.call('ZSCORE', KEYS[1] .. ':permits', permit) or '') or 0) > now then
    for _, key in ipairs({':permits', ':permits:polls', ':c:' .. ARGV[i] .. ':permits'}) do
      redis.call('ZADD', KEYS[1] .. key, 'XX', ends, permit)
    end
  end
end
