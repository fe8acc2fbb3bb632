-- renew.lua extends the leases of permits in use. A permit that has lapsed is not restored.
--
-- KEYS  state of the host of each permit, see host.lua
-- ARGV  1 clock offset, ms   2 lease, ms; then credential and token of each permit

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[1])
local ends = string.format('%.0f', now + tonumber(ARGV[2]))
for i, state in ipairs(KEYS) do
  local name, permit = ARGV[2 * i + 1], 't:' .. ARGV[2 * i + 2]
  if (tonumber(redis.call('ZSCORE', state .. ':permits', permit) or '') or 0) > now then
    for _, key in ipairs({':permits', ':permits:polls', ':c:' .. name .. ':permits'}) do
      redis.call('ZADD', state .. key, 'XX', ends, permit)
    end
  end
end
