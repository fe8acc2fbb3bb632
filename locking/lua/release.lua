-- release.lua releases the lease of token 1 to the first waiter, or removes the token from the queue. The
-- same call requests the lease for token 6, the next waiter of the same process: it is granted at once if
-- nobody else waits, else token 6 joins the end of the queue. A late call only releases.
--
-- KEYS, ARGV 1-14: see queue.lua; 6 is '', and the last, if the process has no other waiter
--
-- Returns {'granted', now, fence, expires}  to token 6
--      or {'held', now, fence, expires, rank, since, worker, job, operation, yields}  token 6 waits
--      or {'free'}   released; there is no token 6, or the call is late
--      or {'gone'}   token 1 did not own the lease and is removed from the queue; token 6 is unchanged
-- Refuses nothing. A repeated call returns 'gone'.

local token, follower = ARGV[1], ARGV[6]
if follower ~= '' and ARGV[13] ~= '0' and now > tonumber(ARGV[13]) then follower = '' end
local h = redis.call('HMGET', lock, 'owner', 'fence')
if h[1] ~= token then
  dequeue(token)
  return {'gone'}
end

local stored = tonumber(h[2])
local _, to = hand_over(stored)
if to and follower == '' then return {'free'} end
if to then
  wait(follower)
  return held(follower)
end
if follower ~= '' then return grant(follower, stored) end

redis.call('HDEL', lock, 'owner', 'expires')
return {'free'}
