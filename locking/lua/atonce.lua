-- atonce.lua precedes acquire.lua. After a hang, Redis runs calls whose callers have given up. Such a call must not
-- take a lease, so it changes nothing. Otherwise atonce.lua grants a lease that nobody holds or waits for, without
-- further setup. Only the first grant in each six hours extends the key's expiry, which is often enough.

if ARGV[13] ~= '0' and now > tonumber(ARGV[13]) then return {'late', now} end

local h = redis.call('HMGET', KEYS[1], 'owner', 'fence', 'since')
if not h[1] and redis.call('EXISTS', KEYS[2]) == 0 then
  local fence = math.max((tonumber(h[2]) or 0) + 1, now, ARGV[7] + 1)
  local since, expires = number(now), now + ARGV[2]
  redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'expires', number(expires), 'fence', number(fence), 'since', since,
    'channel', ARGV[8], 'worker', ARGV[9], 'job', ARGV[10], 'operation', ARGV[11])
  if ARGV[14] ~= '' then redis.call('HSET', KEYS[1], 'yields', ARGV[1]) end
  local sixHours = 21600000000 -- µs
  if math.floor(now / sixHours) ~= math.floor((tonumber(h[3]) or 0) / sixHours) then
    redis.call('PEXPIRE', KEYS[1], KEEP)
  end
  return {'granted', now, fence, expires}
end
