-- renew.lua extends many leases at once.
--
-- KEYS  the locks (hashes)
-- ARGV  1 lease, µs; then, for each key, token and fence
--
-- Returns one number for each key: 1 renewed, 0 lost, 2 the lock does not exist in Redis, 3 a script
-- released the lease of this token and no other token has owned it since.
-- Refuses a lease that another token has owned since, however briefly. It renews an expired lease that no
-- other token has owned.

local expires = number(now + tonumber(ARGV[1]))
local replies = {}
for i, lock in ipairs(KEYS) do
  local h = redis.pcall('HMGET', lock, 'owner', 'fence', 'since')
  if h.err and not string.find(h.err, 'WRONGTYPE') then return h end
  if h.err then
    replies[i] = 0 -- a key of another type must not fail the others
  elseif h[1] == ARGV[2 * i] and h[2] == ARGV[2 * i + 1] then
    redis.call('HSET', lock, 'expires', expires)
    -- Held long enough for the key itself to expire.
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
