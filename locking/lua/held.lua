-- held.lua reports which of many locks are held.
--
-- KEYS  the locks (hashes); a key of another type counts as not held
--
-- Returns 1 for each key that is held, else 0.
-- Changes nothing.

local replies = {}
for i, lock in ipairs(KEYS) do
  replies[i] = 0
  if redis.call('TYPE', lock)['ok'] == 'hash' then
    local h = redis.call('HMGET', lock, 'owner', 'expires')
    if h[1] and h[1] ~= '' and (tonumber(h[2] or '') or 0) > now then replies[i] = 1 end
  end
end
return replies
