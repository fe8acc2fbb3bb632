-- Trim: take away entries that nobody has a use for, and, of a stream that is too long, the oldest.
--
-- An entry has served when every group has settled it: it is older than the lowest pending one of each
-- group, and than the last one that each group has read. The least of these ids is the floor. Entries
-- at and above it go only when the stream is too long.
--
-- KEYS    1 stream
-- ARGV    1 how long to keep what has served, ms   2 how long to keep what no group is there to read, ms
--         3 how many entries to keep at most, 1 at least   4 how many to take away in one call at most
--         5 how many of these at most from above the floor
-- Returns {served, aged, capped, slowest, floor, {group, lost, ...}}
--         served: how many were taken away from below the floor for their age
--         aged: the same of a stream without any group
--         capped: how many because the stream is too long
--         slowest, floor: the group that holds the floor, and the floor's id; "" without any group
--         lost: how many of the capped that group had yet to settle; groups that lost none are left out
--         It is to be called again until it takes nothing away.
-- Refuses with WRONGTYPE when the key is no stream; nothing changed.
--
-- "~" takes whole nodes, a hundred entries by default, and honours LIMIT. The embedded Redis takes "~"
-- as exact and passes over LIMIT: there a stream that is too long loses all that has served.
local stream = KEYS[1]
local keep, age, cap = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local most, above = tonumber(ARGV[4]), tonumber(ARGV[5])

local first = redis.call('XRANGE', stream, '-', '+', 'COUNT', 1)[1]
if not first then return {0, 0, 0, '', '', {}} end

-- Of what was trimmed while pending there is only an id left, which holds nothing back.
local groups, slowest, floor = groups_of(stream), '', ''
for _, g in ipairs(groups) do
  local at = g['last-delivered-id']
  local pending = redis.call('XPENDING', stream, g['name'], first[1], '+', 1)[1]
  if pending and precedes(pending[1], at) then at = pending[1] end
  if floor == '' or precedes(at, floor) then slowest, floor = g['name'], at end
end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function before(ms) return string.format('%.0f-0', math.max(0, now - ms)) end

local served, aged, capped, losses = 0, 0, 0, {}
if floor == '' then
  aged = redis.call('XTRIM', stream, 'MINID', '~', before(age), 'LIMIT', most)
else
  local old = before(keep)
  served = redis.call('XTRIM', stream, 'MINID', '~', precedes(floor, old) and floor or old, 'LIMIT', most)
end

local excess = math.min(redis.call('XLEN', stream) - cap, most)
if excess > 0 and floor == '' then
  capped = redis.call('XTRIM', stream, 'MAXLEN', '=', redis.call('XLEN', stream) - excess)
elseif excess > 0 then
  capped = redis.call('XTRIM', stream, 'MINID', '~', floor, 'LIMIT', excess)
  if capped == 0 then -- no whole node is below the floor: what goes now may be missed, so look at each
    local oldest = redis.call('XRANGE', stream, '-', '+', 'COUNT', math.min(excess, above) + 1)
    local cut = oldest[#oldest][1]
    for _, g in ipairs(groups) do
      local lost = 0
      for _, p in ipairs(redis.call('XPENDING', stream, g['name'], oldest[1][1], cut, #oldest)) do
        if p[1] ~= cut then lost = lost + 1 end
      end
      for i = 1, #oldest - 1 do
        if precedes(g['last-delivered-id'], oldest[i][1]) then lost = lost + 1 end
      end
      if lost > 0 then
        losses[#losses + 1] = g['name']
        losses[#losses + 1] = lost
      end
    end
    capped = redis.call('XTRIM', stream, 'MINID', '=', cut)
  end
end
return {served, aged, capped, slowest, floor, losses}
