-- lease.lua precedes the other scripts of this folder. All of them change a repository that is moved between cells, and do so only under
-- its lease in their own cell.
--
-- KEYS    1 the lease (hash)   2 state of the repository (hash)
-- ARGV    1 owner of the lease   2 its fence
-- Returns {'lost'} without changing anything if the lease is not held by that owner with that fence, or has expired.

local time = redis.call('TIME')
local h = redis.call('HMGET', KEYS[1], 'owner', 'fence', 'expires')
if h[1] ~= ARGV[1] or h[2] ~= ARGV[2] or (tonumber(h[3] or '') or 0) <= time[1] * 1000000 + time[2] then return {'lost'} end

local state = KEYS[2]
local place = redis.call('HGET', state, 'cell') or ''
-- is reports whether a text has this value, perhaps with further words after it.
local function is(text, value) return string.sub((text or '') .. ' ', 1, #value + 1) == value .. ' ' end
