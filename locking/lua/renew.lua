-- renew.lua extends many leases at once.
--
-- KEYS  the locks (hashes)
-- ARGV  1 lease, µs; then, for each key, token and fence
--
-- Returns one number for each key: 1 renewed, 0 lost, 2 Redis knows nothing of this lock, 3 given back
-- under this very token, by a script: nobody else has had it since.
-- Refuses a lease that another token has had since, however briefly. One that ran out but that
-- nobody else has had is still its owner's, and is renewed.

local expires = number(now + tonumber(ARGV[1]))
local replies = {}
for i, lock in ipairs(KEYS) do
  local h = redis.pcall('HMGET', lock, 'owner', 'fence', 'since')
  if h.err and not string.find(h.err, 'WRONGTYPE') then return h end
  if h.err then
    replies[i] = 0 -- somebody has put something else there, which is no reason to fail the others
  elseif h[1] == ARGV[2 * i] and h[2] == ARGV[2 * i + 1] then
    redis.call('HSET', lock, 'expires', expires)
    -- Held for so long that the key itself would expire.
    if now - tonumber(h[3] or '0') > tonumber(KEEP) * 500 then redis.call('PEXPIRE', lock, KEEP) end
    replies[i] = 1
  elseif not h[2] then
    replies[i] = 2
  elseif not h[1] and h[2] == ARGV[2 * i + 1] then
    replies[i] = 3
  else
    replies[i] = 0
  end
end
return replies
